#include "trainer/cli/rank_command.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "core/base/config_error.h"
#include "core/launch/launcher.h"
#include "core/mesh/job_environment.h"
#include "trainer/arguments/table.h"

namespace concord {
std::vector<std::string> rank_command(const std::vector<std::string>& args) {
  std::vector<std::string> command = {std::filesystem::read_symlink("/proc/self/exe").string()};
  for (size_t i = 0; i < args.size(); ++i) {
    std::string name = args[i].substr(0, args[i].find('='));
    std::ranges::replace(name, '-', '_');
    if (!name.starts_with("__") || find_launch_argument(name.substr(2)) == nullptr) {
      command.push_back(args[i]);
    } else if (args[i].find('=') == std::string::npos) {
      ++i;
    }
  }
  return command;
}

std::vector<std::string> command_line_args() {
  std::ifstream stream("/proc/self/cmdline");
  std::vector<std::string> args;
  for (std::string word; std::getline(stream, word, '\0');) args.push_back(word);
  if (!args.empty()) args.erase(args.begin());
  return args;
}

int64_t ranks_of_command(int64_t nproc) {
  const JobEnvironment environment = read_job_environment();
  if (nproc == 0) return environment.world;
  if (environment.source == JobSource::single) return nproc;
  throw ConfigError(
      fmt::format("--nproc {} starts processes, but this process was already started by {}; remove --nproc", nproc,
                  to_string(environment.source)));
}

int launch_ranks(int64_t nproc) {
  LaunchOptions options;
  options.nproc = static_cast<int>(nproc);
  options.prefix = false;
  options.forks_ranks = true;
  return launch(options, rank_command(command_line_args()));
}

}  // namespace concord
