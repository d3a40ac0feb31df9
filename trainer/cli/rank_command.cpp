#include "trainer/cli/rank_command.h"

#include <algorithm>
#include <filesystem>

namespace concord {
namespace {

// What says where processes are started, with '_' for '-'.
constexpr std::string_view kPlaces[] = {"__nproc", "__nnodes", "__node_rank", "__master_addr", "__master_port"};

}  // namespace

std::vector<std::string> rank_command(const std::vector<std::string>& words) {
  std::vector<std::string> command = {std::filesystem::read_symlink("/proc/self/exe").string()};
  for (size_t i = 0; i < words.size(); ++i) {
    std::string name = words[i].substr(0, words[i].find('='));
    std::ranges::replace(name, '-', '_');
    if (std::ranges::find(kPlaces, name) == std::ranges::end(kPlaces)) {
      command.push_back(words[i]);
    } else if (words[i].find('=') == std::string::npos) {
      ++i;
    }
  }
  return command;
}

}  // namespace concord
