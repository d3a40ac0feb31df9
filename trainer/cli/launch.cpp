#include "trainer/cli/launch.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

#include "core/base/config_error.h"
#include "core/base/files/output_check.h"
#include "core/base/files/run_lock.h"
#include "core/launch/job/job_state.h"
#include "core/launch/launcher.h"
#include "trainer/arguments/arguments.h"
#include "trainer/arguments/table.h"
#include "trainer/checkpoint/output_folder.h"
#include "trainer/cli/rank_command.h"
#include "trainer/cli/setting_options.h"
#include "trainer/program_path.h"

namespace concord {
namespace {

constexpr const char* kLaunchFooter =
    R"(The command after -- is a subcommand of this program, or any program given by path or found in PATH:
  concord launch --nproc 4 -- platforms
  concord launch --nproc 4 -- ./a.out --its_own_option
  concord launch --nproc 8 --nnodes 2 --node_rank 1 --master_addr node0 -- ./a.out   (on each machine)

The processes get torchrun's environment variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and so on).
Ctrl-C, SIGTERM and SIGHUP are forwarded to them; a second signal kills them. When one process fails, the others are
stopped and its error is shown first.
Launchers on several machines with --max_restarts are led by the one with --node_rank 0, at --master_port: all restart
together, and a launcher that is lost may be started again within --rejoin_timeout. If the leader is lost and is not
started again in that time, the others exit with code 75. With --rdzv_backend etcd the launchers elect their leader in
etcd, and another one leads after its machine is lost. A launcher with a --node_rank of --nnodes or more is a spare
machine: it waits and replaces a lost one. Set CONCORD_JOB_TOKEN to the same random text on all machines.
Exit codes: 0 all processes exited with 0; 1 one did not; 2 wrong usage; 128 + signal: stopped by that signal; 75 a
training failed that has written a checkpoint: requeue; 71 a device is at fault: requeue without it.)";

struct LaunchCommand {
  TrainingArguments settings;
  LaunchOptions options;  // those that are not settings
  bool no_prefix = false;
  std::vector<std::string> command;
};

// Only `train` of this program knows how to wait for its turn, and keeps what it needs in checkpoints.
void recover_as_train_does(const std::vector<std::string>& command, LaunchOptions* options) {
  const bool is_train = !command.empty() && command.front() == "train";
  if (options->spares > 0 && !is_train) {
    throw ConfigError(
        fmt::format("--spares is {}, but '{}' cannot wait as a spare; only train can, e.g. concord launch "
                    "--nproc 2 --max_restarts 3 --spares 1 -- train ...",
                    options->spares, command.empty() ? "" : command.front()));
  }
  if (options->spares > 0 && options->max_restarts == 0) {
    throw ConfigError(
        fmt::format("--spares is {}, but without --max_restarts nothing is started again after a failure; "
                    "set it",
                    options->spares));
  }
  options->recovers = is_train;
}

// Throws ConfigError if the log folder is in the output folder of another running job. Not checked on several machines:
// the folder may belong to this job, which another machine has already started.
void check_log_dir(const LaunchOptions& options) {
  if (!options.log_dir.empty() && options.nnodes == 1) check_outside_live_runs("--log_dir", options.log_dir);
}

// Returns the arguments of |command| if it trains.
std::optional<CommandLine> train_line(const std::vector<std::string>& command) {
  if (command.empty() || command.front() != "train") return std::nullopt;
  try {
    const CommandLine line = parse_command_line(std::vector(command.begin() + 1, command.end()));
    return line.help || line.print_config ? std::nullopt : std::optional(line);
  } catch (const ConfigError&) {  // the ranks report it
    return std::nullopt;
  }
}

std::optional<ContinueLine> continue_line(const std::optional<CommandLine>& train,
                                          const std::vector<std::string>& command) {
  if (!train) return std::nullopt;
  std::vector<std::string> before = command_line_args();
  before.resize(before.size() - command.size() + 1);  // up to "train", which ends the arguments of the launcher
  before.insert(before.begin(), program_as_typed());
  return std::optional<ContinueLine>(std::in_place, train->arguments, std::move(before),
                                     std::vector(command.begin() + 1, command.end()));
}

// A subcommand name runs this same program.
std::vector<std::string> resolve(const CLI::App& program, std::vector<std::string> command) {
  const auto is_named = [&](const CLI::App* app) { return !command.empty() && app->check_name(command.front()); };
  if (program.get_subcommands(is_named).empty()) return command;
  command.insert(command.begin(), std::filesystem::read_symlink("/proc/self/exe").string());
  return command;
}

// Print and exit, like --help.
void add_rules_flags(CLI::App* app) {
  const auto add = [&](const char* name, std::string (*text)(const JobRules&), const char* help) {
    app->add_flag_callback(
           name,
           [text] {
             std::fputs(text(job_rules()).c_str(), stdout);
             throw CLI::Success();
           },
           help)
        ->trigger_on_parse();
  };
  add("--print_rules", rules_table, "print what the launchers of a job on several machines do after each event");
  add("--draw_rules", rules_mermaid, "the same as a drawing, for mermaid");
}

}  // namespace

LaunchOptions launch_options(const TrainingArguments& settings) {
  LaunchOptions options;
  options.nproc = static_cast<int>(settings.launch.nproc);
  options.nnodes = static_cast<int>(settings.launch.nnodes);
  options.node_rank = static_cast<int>(settings.launch.node_rank);
  options.master_addr = settings.launch.master_addr;
  options.master_port = static_cast<int>(settings.launch.master_port);
  options.rendezvous = settings.launch.rendezvous;
  options.max_restarts = static_cast<int>(settings.recovery.max_restarts);
  options.spares = static_cast<int>(settings.recovery.spares);
  options.rejoin_seconds = settings.recovery.rejoin_timeout;
  return options;
}

void add_launch_command(CLI::App* program, int* exit_code) {
  const auto arguments = std::make_shared<LaunchCommand>();
  LaunchOptions& options = arguments->options;
  CLI::App* launch_app =
      program->add_subcommand("launch", "start the processes of a job on this machine, like torchrun");
  launch_app->footer(kLaunchFooter);
  TrainingArguments* settings = &arguments->settings;
  for (const Argument& argument : launch_arguments()) {
    const bool is_nproc = argument.name == "nproc";
    CLI::Option* added = add_setting(launch_app,
                                     {.name = argument.name,
                                      .spellings = is_nproc ? "--nproc,--nproc_per_node" : "",
                                      .shows_default = !is_nproc && argument.name != "master_port"},
                                     settings);
    added->required(is_nproc);
  }
  add_settings(
      launch_app,
      {{.name = "max_restarts", .help = "how many times to restart all processes after failures without progress"},
       {.name = "spares",
        .help = "with --max_restarts and train: processes per machine that wait to replace a lost one"},
       {.name = "rejoin_timeout",
        .help = "with --nnodes and --max_restarts: seconds in which a lost launcher may be started again"}},
      settings);
  launch_app->add_option("--grace", options.grace_seconds, "seconds between SIGTERM and SIGKILL when a job is stopped")
      ->capture_default_str();
  launch_app->add_option(
      "--log_dir", options.log_dir,
      "append the output to rank-N.log in this folder, one file per rank, instead of writing it here");
  launch_app->add_flag("--no_prefix", arguments->no_prefix, "do not prefix lines with \"[rank N] \"");
  add_rules_flags(launch_app);
  launch_app->add_option("command", arguments->command, "command that each process runs, after --");
  launch_app->callback([program, arguments, exit_code] {
    LaunchOptions all = launch_options(arguments->settings);
    all.grace_seconds = arguments->options.grace_seconds;
    all.log_dir = arguments->options.log_dir;
    all.prefix = !arguments->no_prefix;
    recover_as_train_does(arguments->command, &all);
    check_log_dir(all);
    const std::optional<CommandLine> train = train_line(arguments->command);
    const bool holds_lock = train && arguments->settings.launch.nnodes == 1;
    const std::unique_ptr<RunLock> lock =
        holds_lock ? lock_for_ranks(output_request(train->arguments, {})) : nullptr;
    const std::optional<ContinueLine> last_line = continue_line(train, arguments->command);
    *exit_code = launch(all, resolve(*program, arguments->command));
    if (last_line) last_line->print(*exit_code, train->json);
  });
}

}  // namespace concord
