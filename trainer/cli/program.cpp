#include "trainer/cli/program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "core/base/config_error.h"
#include "core/base/nearest_name.h"
#include "core/base/quoted.h"
#include "core/base/resources.h"
#include "core/launch/job/restart_policy.h"
#include "core/mesh/bad_device.h"
#include "platform/abi/concord.h"
#include "platform/loader/error.h"
#include "trainer/cli/chaos.h"              // concord chaos: trains under faults and compares
#include "trainer/cli/conform/conform.h"    // concord conform: checks a plugin against the contract
#include "trainer/cli/conform/operators.h"  // concord operators: compares those of a device with the host's
#include "trainer/cli/data.h"               // concord data: builds training data files
#include "trainer/cli/doctor.h"             // concord doctor: checks this machine
#include "trainer/cli/files/checkpoint.h"   // concord checkpoint: lists, describes, verifies and compares them
#include "trainer/cli/files/convert.h"      // concord convert: weights in another type or in other files
#include "trainer/cli/files/diff.h"         // concord diff: compares two dumps or folders, tensor by tensor
#include "trainer/cli/files/merge.h"        // concord merge: an adapter added to its base model
#include "trainer/cli/launch.h"             // concord launch: starts the processes of a job
#include "trainer/cli/plans/lr.h"           // concord lr: prints and plots the learning rates of a run
#include "trainer/cli/plans/plan.h"         // concord plan: the groups of a layout
#include "trainer/cli/plans/schedule.h"     // concord schedule: prints, costs and draws a pipeline schedule
#include "trainer/cli/platforms.h"          // concord platforms: the plugins found and the one chosen
#include "trainer/cli/print_error.h"
#include "trainer/cli/program_version.h"
#include "trainer/cli/report.h"  // concord report: compares runs
#ifdef CONCORD_WITH_TORCH
#include "core/launch/processes/zygote_process.h"
#include "trainer/cli/generate.h"  // concord generate: text that a model writes; not available without libtorch
#include "trainer/cli/probe.h"     // concord probe: a model's results on one batch; not available without libtorch
#include "trainer/cli/train.h"     // concord train: trains a model; not available without libtorch
#include "trainer/torch_module/libtorch.h"
#include "trainer/torch_module/loader.h"
#endif

namespace concord {
namespace {

constexpr int kFailed = 1;
constexpr int kWrongUsage = 2;

// Option names are in snake case, as in HF; '-' means the same as '_'. Words after "--" are left alone.
std::vector<std::string> normalised(std::vector<std::string> arguments) {
  for (std::string& argument : arguments) {
    if (argument == "--") break;
    if (!argument.starts_with("--")) continue;
    const size_t end = std::min(argument.find('='), argument.size());
    for (size_t i = 2; i < end; ++i) {
      if (argument[i] == '-') argument[i] = '_';
    }
  }
  return {arguments.rbegin(), arguments.rend()};  // CLI11 reads them from the back
}

// The words of the command line; `help data build` is `data build --help`.
std::vector<std::string> words_of(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  if (words.empty() || words.front() != "help") return words;
  words.erase(words.begin());
  const bool is_train = !words.empty() && words.front() == "train";  // whose --help takes a word
  words.insert(is_train ? words.begin() + 1 : words.end(), "--help");
  return words;
}

// The parser's own error would not suggest a name.
void check_subcommand(const CLI::App& app, const std::vector<std::string>& words) {
  const std::string word = words.empty() ? "-" : words.front();
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  if (word.starts_with('-') || std::find(names.begin(), names.end(), word) != names.end()) return;
  const std::vector<std::string_view> views(names.begin(), names.end());
  const std::string nearest = nearest_name(word, views);
  throw ConfigError("unknown subcommand " + quoted(word) + "; " +
                    (nearest.empty() ? "`concord --help` lists all subcommands" : "did you mean " + nearest + "?"));
}

// If a standard stream is closed, a library or file opened later must not get its descriptor: printed text would go
// there.
void open_standard_streams() {
  int fd = 0;
  while ((fd = ::open("/dev/null", O_RDWR)) >= 0 && fd <= STDERR_FILENO) {
  }
  if (fd > STDERR_FILENO) ::close(fd);
}

// Prints the text of an exception, with control characters from outside escaped, and without the calls of libtorch.
int failed(const std::string& text, int exit_code) {
  print_error(printable(without_backtrace(text)));
  return exit_code;
}

// Uncaught exceptions, in another thread or while a library is loaded: running out of resources is reported here too.
std::terminate_handler terminate_before = nullptr;
[[noreturn]] void on_terminate() {
  try {
    if (const std::exception_ptr error = std::current_exception()) std::rethrow_exception(error);
  } catch (const std::exception& error) {
    if (const std::optional<std::string> text = what_is_short(error)) ::_exit(failed(*text, kFailed));
  } catch (...) {
  }
  terminate_before();
  std::abort();
}

// As CLI11 prints it: help on standard output, errors, which quote the arguments, on standard error.
int exit_of_parse(const CLI::App& app, const CLI::ParseError& error) {
  std::ostringstream out, err;
  const int code = app.exit(error, out, err);
  std::fputs(out.str().c_str(), stdout);
  std::fputs(printable(err.str()).c_str(), stderr);
  return code == 0 ? 0 : kWrongUsage;
}

std::string version_text() {
  std::string text =
      fmt::format("concord {} (plugin ABI {}.{}", program_version(), CONCORD_ABI_MAJOR, CONCORD_ABI_MINOR);
#ifdef CONCORD_WITH_TORCH
  text += ", libtorch " CONCORD_TORCH_VERSION;
#endif
  return text + ")";
}

#ifdef CONCORD_WITH_TORCH
// Loads libtorch as a rank does: call after all that uses the platform (trainer/torch_module/table.h).
Finding examine_libtorch() {
  const char* const named = std::getenv("CONCORD_TORCH");
  try {
    torch_module();
    const std::string place = named != nullptr && *named != '\0' ? std::string(", CONCORD_TORCH is ") + named : "";
    return {Finding::Kind::fine, "libtorch", CONCORD_TORCH_VERSION + place, ""};
  } catch (const std::exception& error) {
    const std::string advice = libtorch_advice();
    std::string found = error.what();
    if (found.ends_with("; " + advice)) found.resize(found.size() - advice.size() - 2);
    return {Finding::Kind::problem, "libtorch", found, advice};
  }
}

// Returns in the ranks that it forks. Where libtorch cannot be loaded, ranks that are started instead say why.
void be_zygote() {
  try {
    torch_module();
  } catch (const std::exception&) {
    ::_exit(1);
  }
  fork_ranks();
}
#endif

}  // namespace

std::unique_ptr<CLI::App> make_program(int* exit_code) {
  auto program =
      std::make_unique<CLI::App>("Concord: one training framework for NVIDIA, Ascend and plain CPUs", "concord");
  CLI::App& app = *program;
  app.set_version_flag("--version", version_text());
  app.require_subcommand(1);
  app.footer("See concord help SUBCOMMAND for details. Exit codes: 0 success, 1 failure, 2 wrong usage.");
  add_platforms_command(&app, exit_code);
#ifdef CONCORD_WITH_TORCH
  add_doctor_command(&app, exit_code, examine_libtorch);
#else
  add_doctor_command(&app, exit_code);
#endif
  add_plan_command(&app);
  add_schedule_command(&app);
  add_chaos_command(&app, exit_code);
  add_checkpoint_command(&app, exit_code);
  add_diff_command(&app, exit_code);
  add_convert_command(&app, exit_code);
  add_merge_command(&app, exit_code);
  add_data_command(&app);
  add_lr_command(&app);
  add_report_command(&app);
  add_launch_command(&app, exit_code);
  add_conform_command(&app, exit_code);
#ifdef CONCORD_WITH_TORCH
  add_generate_command(&app, exit_code);
  add_operators_command(&app, exit_code);
  add_probe_command(&app, exit_code);
  add_train_command(&app, exit_code);
#endif
  return program;
}

int run_program(int argc, char** argv) {
  open_standard_streams();
#ifdef CONCORD_WITH_TORCH
  if (is_zygote()) be_zygote();
#endif
  ::signal(SIGXFSZ, SIG_IGN);  // exceeding the file size limit becomes a write error, which names the file
  terminate_before = std::set_terminate(on_terminate);
  int exit_code = 0;
  const std::unique_ptr<CLI::App> program = make_program(&exit_code);
  CLI::App& app = *program;
  try {
    const std::vector<std::string> words = words_of(argc, argv);
    check_subcommand(app, words);
    app.parse(normalised(words));
  } catch (const CLI::ParseError& error) {
    return exit_of_parse(app, error);
  } catch (const ConfigError& error) {
    return failed(error.what(), kWrongUsage);
  } catch (const BadDevice& error) {
    return failed(error.what(), kExitBadDevice);
  } catch (const Error& error) {  // an invalid environment variable is wrong usage too
    const bool is_usage = error.call().empty() && error.status() == CONCORD_STATUS_INVALID_ARGUMENT;
    return failed(what_is_short(error).value_or(error.what()), is_usage ? kWrongUsage : kFailed);
  } catch (const std::exception& error) {
    return failed(what_is_short(error).value_or(error.what()), kFailed);
  }
  return exit_code;
}

}  // namespace concord
