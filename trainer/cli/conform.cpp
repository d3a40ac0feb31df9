#include "trainer/cli/conform.h"

#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/base/files/output_check.h"
#include "platform/loader/error.h"

namespace concord {
namespace {

// Throws ConfigError if --report is in the output folder of a running job, which the kit knows nothing about. The kit
// checks the rest of the path.
void check_report_path(const std::vector<std::string>& arguments) {
  constexpr std::string_view kName = "--report";
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].starts_with(fmt::format("{}=", kName)))
      check_outside_live_runs(std::string(kName), arguments[i].substr(kName.size() + 1));
    if (arguments[i] == kName && i + 1 < arguments.size())
      check_outside_live_runs(std::string(kName), arguments[i + 1]);
  }
}

// Replaces this process with the kit, so that exit code and signals are the kit's.
[[noreturn]] void become_kit(std::vector<std::string> arguments) {
  const std::filesystem::path kit = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "concord-conform";
  std::vector<char*> args = {const_cast<char*>(kit.c_str())};
  for (std::string& argument : arguments) args.push_back(argument.data());
  args.push_back(nullptr);
  execv(kit.c_str(), args.data());
  const std::string reason = std::generic_category().message(errno);
  throw Error(CONCORD_STATUS_UNAVAILABLE, fmt::format("cannot start the conformance kit, {}: {}; in a source tree "
                                                      "build the target concord-conform, otherwise reinstall Concord",
                                                      kit.string(), reason));
}

}  // namespace

void add_conform_command(CLI::App* app) {
  CLI::App* command = app->add_subcommand("conform", "check a plugin against the contract; see concord conform --help");
  command->prefix_command();  // everything after it is passed to the kit,
  command->set_help_flag();   // including --help
  command->callback([command] {
    check_report_path(command->remaining());
    become_kit(command->remaining());
  });
}

}  // namespace concord
