#include "platform/loader/search_path.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "platform/loader/host.h"
#include "platform/loader/text.h"

// Where the installation that this program was linked with has its plugins; find_package(Concord) compiles it into what
// links Concord::platform. Not there in programs of the checkout.
extern "C" [[gnu::weak]] const char concord_installed_plugins[];

namespace concord::loader {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "libconcord_";
constexpr std::string_view kSuffix = ".so";

bool looks_like_plugin(std::string_view file) {
  return file.size() > kPrefix.size() + kSuffix.size() && file.starts_with(kPrefix) && file.ends_with(kSuffix);
}

std::vector<Folder> listed_folders() {
  const auto list = setting("plugin.path");
  if (!list) return {};
  std::vector<Folder> folders;
  for (size_t begin = 0; begin <= list->size();) {
    const size_t end = std::min(list->find(':', begin), list->size());
    if (end > begin) folders.push_back({list->substr(begin, end - begin), "CONCORD_PLUGIN_PATH", ""});
    begin = end + 1;
  }
  return folders;
}

std::vector<Folder> all_folders() {
  std::vector<Folder> folders = listed_folders();
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) {
    const fs::path bin = program.parent_path();
    folders.push_back({bin.parent_path() / "lib", "next to the program", ""});
    folders.push_back({(bin / CONCORD_PLUGINS_FROM_BIN).lexically_normal(), "next to the program", ""});
  }
  if (concord_installed_plugins != nullptr) folders.push_back({concord_installed_plugins, "installed", ""});
  folders.push_back({CONCORD_INSTALLED_PLUGINS, "installed", ""});
  return folders;
}

}  // namespace

std::vector<Folder> plugin_folders() {
  std::vector<Folder> result;
  std::set<fs::path> seen;
  for (Folder& folder : all_folders()) {
    std::error_code error;
    const fs::path real = fs::canonical(folder.path, error);
    if (error) {
      folder.problem = error == std::errc::no_such_file_or_directory ? "no such folder" : error.message();
    } else if (!fs::is_directory(real, error)) {
      folder.problem = "it is not a folder";
    } else if (!seen.insert(real).second) {
      continue;
    }
    result.push_back(std::move(folder));
  }
  return result;
}

std::vector<std::string> plugin_files(const Folder& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator entry(folder.path, error), end; !error && entry != end; entry.increment(error)) {
    if (looks_like_plugin(entry->path().filename().string())) files.push_back(entry->path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string plugin_file_name(const std::string& name) { return cat(kPrefix, name, kSuffix); }

std::string plugin_name_of_file(const std::string& path) {
  const std::string file = fs::path(path).filename().string();
  if (!looks_like_plugin(file)) return file;
  return file.substr(kPrefix.size(), file.size() - kPrefix.size() - kSuffix.size());
}

bool is_path(const std::string& name_or_path) { return name_or_path.find('/') != std::string::npos; }

}  // namespace concord::loader
