#include "trainer/cli/rank_command.h"

#include <filesystem>

namespace concord {

std::vector<std::string> rank_command(const std::vector<std::string>& words) {
  std::vector<std::string> command = {std::filesystem::read_symlink("/proc/self/exe").string()};
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--nproc") {
      ++i;
    } else if (!words[i].starts_with("--nproc=")) {
      command.push_back(words[i]);
    }
  }
  return command;
}

}  // namespace concord
