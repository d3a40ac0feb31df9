#include "core/base/files/paths.h"

#include <sys/vfs.h>

#include <algorithm>
#include <iterator>
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

bool is_network_file_system(uint64_t type) {
  constexpr uint64_t kTypes[] = {
      0x6969,      // NFS
      0x0bd00bd0,  // Lustre
      0x47504653,  // GPFS
      0x00c36400,  // Ceph
      0xfe534d42,  // SMB 2
      0xff534d42,  // CIFS
      0x517b,      // SMB
      0x5346414f,  // AFS
      0x6b414653,  // kAFS
      0x01021997,  // 9p
      0x7461636f,  // OCFS2
      0x01161970,  // GFS2
      0x19830326,  // BeeGFS
      0x65735546,  // FUSE
  };
  return std::find(std::begin(kTypes), std::end(kTypes), type) != std::end(kTypes);
}

bool is_on_network(const fs::path& path) {
  struct statfs found{};
  return ::statfs(path.c_str(), &found) == 0 && is_network_file_system(static_cast<uint32_t>(found.f_type));
}

}  // namespace concord
