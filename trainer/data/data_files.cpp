#include "trainer/data/data_files.h"

#include <fmt/core.h>
#include <glob.h>

#include <algorithm>
#include <filesystem>

#include "core/base/config_error.h"
#include "trainer/data/text/records.h"

namespace concord {
namespace {

namespace fs = std::filesystem;

bool is_pattern(const std::string& path) {
  std::error_code ignored;
  return path.find_first_of("*?[") != std::string::npos && !fs::exists(path, ignored);
}

bool is_folder(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

bool is_data_name(const std::string& name) {
  if (name.starts_with(".") || name.starts_with("cache-") || name == "dataset_info.json" || name == "state.json")
    return false;
  return name.ends_with(".txt") || name.ends_with(".jsonl") || is_record_file(name);
}

std::vector<std::string> matching(const std::string& pattern) {
  glob_t found{};
  const int failure = ::glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<std::string> files;
  for (size_t i = 0; failure == 0 && i < found.gl_pathc; ++i) {
    if (!is_folder(found.gl_pathv[i])) files.emplace_back(found.gl_pathv[i]);
  }
  ::globfree(&found);
  return files;
}

std::vector<std::string> files_below(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (at->is_directory() && name.starts_with(".")) at.disable_recursion_pending();
    if (!at->is_directory() && is_data_name(name)) files.push_back(at->path().string());
  }
  if (error) throw ConfigError(fmt::format("cannot read folder {}: {}", folder, error.message()));
  return files;
}

}  // namespace

bool is_several_files(const std::string& path) {
  std::error_code ignored;
  return is_pattern(path) || (is_folder(path) && !fs::exists(path + ".idx", ignored));
}

std::vector<std::string> data_files(const std::string& path) {
  if (!is_several_files(path)) return {path};
  std::vector<std::string> files = is_folder(path) ? files_below(path) : matching(path);
  if (files.empty()) {
    throw ConfigError(
        is_folder(path) ? fmt::format("{}: the folder has no file that ends in .txt, .jsonl, {}", path, kRecordEndings)
                        : fmt::format("no file matches {}", path));
  }
  std::ranges::sort(files);
  return files;
}

}  // namespace concord
