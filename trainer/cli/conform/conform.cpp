#include "trainer/cli/conform/conform.h"

#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/base/config_error.h"
#include "core/base/files/output_check.h"
#include "platform/loader/error.h"
#include "trainer/cli/conform/platform_report.h"

namespace concord {
namespace {

constexpr std::string_view kReport = "--report", kPlatform = "--platform";

// Returns the value of the last |name| in |arguments|, given as one word or two, and removes it if |takes| it.
std::string value_of(std::string_view name, std::vector<std::string>* arguments, bool takes) {
  std::string value;
  for (size_t i = 0; i < arguments->size(); ++i) {
    const std::string& word = (*arguments)[i];
    const bool is_one = word.starts_with(fmt::format("{}=", name));
    if (!is_one && (word != name || i + 1 == arguments->size())) continue;
    value = is_one ? word.substr(name.size() + 1) : (*arguments)[i + 1];
    if (takes) {
      const auto first = arguments->begin() + static_cast<std::ptrdiff_t>(i);
      arguments->erase(first, first + (is_one ? 1 : 2));
      --i;
    }
  }
  return value;
}

bool take_flag(const std::string& name, std::vector<std::string>* arguments) {
  return std::erase(*arguments, name) > 0;
}

bool has(const std::vector<std::string>& arguments, const std::string& word) {
  return std::find(arguments.begin(), arguments.end(), word) != arguments.end();
}

// Whether |arguments| ask for an archive, which contains the kit's report.
bool asks_for_archive(std::vector<std::string> arguments) {
  for (const char* const other : {"--help", "-h", "--list"}) {
    if (has(arguments, other)) return false;
  }
  return value_of(kReport, &arguments, false).ends_with(".zip");
}

int write_archive(std::vector<std::string> arguments) {
  for (const char* const other : {"--perf", "--json"}) {
    if (has(arguments, other)) {
      throw ConfigError(fmt::format("--report FILE.zip cannot be combined with {}; use a report FILE.json", other));
    }
  }
  PlatformReportOptions options;
  options.file = value_of(kReport, &arguments, true);
  options.platform = value_of(kPlatform, &arguments, true);
  options.overwrite = take_flag("--overwrite", &arguments);
  options.quick = has(arguments, "--quick");
  options.kit = std::move(arguments);
  return write_platform_report(options);
}

// The kit knows nothing about running jobs, in whose output folders --report must not be. It checks the rest of the
// path.
void check_report_path(std::vector<std::string> arguments) {
  check_outside_live_runs(std::string(kReport), value_of(kReport, &arguments, false));
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

void add_conform_command(CLI::App* app, int* exit_code) {
  CLI::App* command = app->add_subcommand("conform", "check a plugin against the contract; see concord conform --help");
  command->prefix_command();  // everything after it is passed to the kit,
  command->set_help_flag();   // including --help
  command->callback([command, exit_code] {
    check_report_path(command->remaining());
    if (asks_for_archive(command->remaining())) {
      *exit_code = write_archive(command->remaining());
      return;
    }
    become_kit(command->remaining());
  });
}

}  // namespace concord
