// Where plugins are looked for. A plugin called |name| is the file libconcord_<name>.so in one of the folders.
#pragma once

#include <string>
#include <vector>

namespace concord::loader {

struct Folder {
  std::string path;
  std::string origin;   // why it is searched: "CONCORD_PLUGIN_PATH", "next to the program", "installed"
  std::string problem;  // why it cannot be; empty if it can
};

// In the order of search, each real folder once: those of CONCORD_PLUGIN_PATH; ../lib as seen from the program, and the
// plugins of an installation whose bin contains it (../lib/concord); those of the installation that the program was
// linked with; the default folder of an installation.
std::vector<Folder> plugin_folders();

// The paths of all libconcord_*.so in |folder|, sorted.
std::vector<std::string> plugin_files(const Folder& folder);

std::string plugin_file_name(const std::string& name);     // "cpu" -> "libconcord_cpu.so"
std::string plugin_name_of_file(const std::string& path);  // ".../libconcord_cpu.so" -> "cpu"; else the file's name
bool is_path(const std::string& name_or_path);             // it has a '/'

}  // namespace concord::loader
