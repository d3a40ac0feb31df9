#include "core/paths.h"

#include <algorithm>
#include <system_error>

namespace concord {

namespace fs = std::filesystem;

bool lies_in(const fs::path& path, const fs::path& folder) {
  std::error_code error;
  const fs::path inner = fs::weakly_canonical(fs::absolute(path, error), error),
                 outer = fs::weakly_canonical(fs::absolute(folder, error), error);
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

std::string without_trailing_slashes(std::string folder) {
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  return folder;
}

}  // namespace concord
