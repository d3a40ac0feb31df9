#include "trainer/program_path.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

namespace concord {

namespace fs = std::filesystem;

namespace {

// The command `concord` of a Python package is a script, which becomes the program and gives its own path as the name.
fs::path path_as_typed(std::error_code& error) {
  std::string name;
  std::getline(std::ifstream("/proc/self/cmdline"), name, '\0');
  const fs::path program = fs::read_symlink("/proc/self/exe", error), given = name;
  std::error_code none;
  return given.is_absolute() && given.filename() == program.filename() && fs::is_regular_file(given, none) ? given
                                                                                                           : program;
}

}  // namespace

std::string program_as_typed() {
  std::error_code error;
  const fs::path program = path_as_typed(error);
  if (error) return "concord";
  const char* folders = std::getenv("PATH");
  std::istringstream list(folders != nullptr ? folders : "");
  for (std::string folder; std::getline(list, folder, ':');) {
    if (!folder.empty() && fs::equivalent(fs::path(folder) / program.filename(), program, error)) {
      return program.filename().string();
    }
  }
  const fs::path relative = program.lexically_relative(fs::current_path(error));
  if (relative.empty() || *relative.begin() == "..") return program.string();
  return relative.has_parent_path() ? relative.string() : "./" + relative.string();
}

}  // namespace concord
