#include "trainer/cli/train.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>

#include "core/base/config_error.h"
#include "core/base/files/run_lock.h"
#include "core/base/job_board.h"
#include "core/launch/launcher.h"
#include "core/launch/processes/spare_process.h"
#include "core/launch/watch/native_stacks.h"
#include "core/mesh/job_environment.h"
#include "trainer/arguments/arguments.h"
#include "trainer/arguments/hub_names.h"
#include "trainer/checkpoint/output_folder.h"
#include "trainer/cli/launch.h"
#include "trainer/cli/rank_command.h"
#include "trainer/first_run.h"
#include "trainer/health/elastic_layout.h"
#include "trainer/plan.h"
#include "trainer/program_path.h"
#include "trainer/stop_request.h"
#include "trainer/torch_module/loader.h"

namespace concord {
namespace {

constexpr const char* kTrainUsage = R"(concord train [--config FILE.yaml] [--nproc N] [--name value ...]
  trains a model, from scratch or from a Hugging Face folder, on pretraining data or chats.

  concord train                                        a small model on generated data, 2 local processes
  concord train --config run.yaml --nproc 8            8 local processes
  concord train --config run.yaml --nproc 8 --nnodes 2 --node_rank 0 --master_addr node0     on each of 2 machines
  torchrun --nproc_per_node 8 --no-python concord train --config run.yaml     srun and mpirun work too
  concord train --config run.yaml --print_config       check all arguments and print them as YAML

  --config FILE     YAML or TOML file with the names below; the command line takes precedence
  --nproc N         start N processes on this machine
  --nnodes M --node_rank R --master_addr HOST [--master_port P]
                    on each of M machines, with R from 0: one job on all of them; with max_restarts, one with R
                    from M on is a spare machine, which takes the place of one that is lost
  --rdzv_backend etcd --rdzv_endpoint HOST:2379[,...] --rdzv_id NAME [--rdzv_conf NAME=VALUE,...] [--local_addr HOST]
                    instead of --master_addr, with max_restarts: the launchers elect their leader in etcd, and another
                    one leads when its machine is lost
  --help [WORD]     print all arguments, or those of the groups, or with the names, that contain WORD
  --print_config    print the arguments and exit
  --json            print the result as JSON on standard output, and nothing else there
Names may also be written with '-'. Flags: --bf16, --bf16 false, --no_bf16.
SIGTERM, SIGINT and SIGHUP stop the run after the current step and save everything, within exit_signal_grace seconds; a
second signal stops it immediately.
Exit codes: 0 finished; 1 failed; 2 wrong usage; 128 + signal: stopped by that signal after saving (143: SIGTERM);
75 failed, but there is a checkpoint to resume from: requeue; 71 a device is at fault: requeue without it.
)";

void check_output(const CommandLine& line) { check_output_folder(output_request(line.arguments, {line.config})); }

// In a job of several launchers the rank that writes holds the lock.
std::unique_ptr<RunLock> lock_output(const CommandLine& line) {
  return line.arguments.launch.nnodes > 1 ? nullptr : lock_for_ranks(output_request(line.arguments, {line.config}));
}

int64_t world_of(const CommandLine& line) { return line.arguments.launch.nproc * line.arguments.launch.nnodes; }

// The input of a first run is written to a folder that the machines share, which is machine 0's to check, or to each
// machine's own.
bool checks_output_of_first_run(const CommandLine& line) {
  return line.arguments.launch.node_rank == 0 || line.arguments.saving.on_each_node;
}

// Errors are reported once, here, and not by each process. Locks the output folder unless |lock| does already.
void check_train(const CommandLine& line, std::unique_ptr<RunLock>* lock) {
  if (*lock == nullptr) *lock = lock_output(line);
  const TrainingPlan plan = plan_training(line.arguments, 0, world_of(line));
  Machines machines{.first = {}, .world = world_of(line)};
  for (int64_t i = 0; i < line.arguments.launch.nnodes; ++i) machines.first.push_back(i * line.arguments.launch.nproc);
  check_machines(plan, machines);
  // On several machines the ranks check their folders, once they have met: nobody then waits for one that is refused.
  if (line.arguments.launch.nnodes == 1) check_output(line);
}

void check_places(const CommandLine& line) {
  if (line.arguments.launch.nproc == 0 && (line.arguments.launch.nnodes > 1 || line.arguments.launch.node_rank > 0)) {
    throw ConfigError(
        "--nnodes and --node_rank are for launchers; add --nproc, the number of processes on each machine");
  }
}

int start_train_ranks(const CommandLine& line, std::vector<std::string> args, std::unique_ptr<RunLock> lock) {
  check_train(line, &lock);
  if (isatty(STDOUT_FILENO) == 1 && !line.json) {
    if (const char* name = ttyname(STDOUT_FILENO)) setenv(kTerminalVariable, name, 1);
  }
  LaunchOptions options = launch_options(line.arguments);
  options.prefix = false;
  if (line.arguments.recovery.allow_fewer_ranks) {
    options.worlds = allowed_world_sizes(line.arguments, world_of(line));
    const int64_t tensor = line.arguments.job.tensor_model_parallel_size;
    if (line.arguments.launch.nproc % tensor == 0) options.colocated_ranks = static_cast<int>(tensor);
  }
  options.recovers = true;
  options.forks_ranks = true;
  args.insert(args.begin(), "train");
  return launch(options, rank_command(args));
}

int start_train(const CommandLine& line, std::vector<std::string> args, bool is_started,
                std::unique_ptr<RunLock> lock = nullptr) {
  const bool is_supervised =
      world_of(line) > 1 || (line.arguments.launch.nproc == 1 && line.arguments.recovery.max_restarts > 0);
  if (is_supervised) return start_train_ranks(line, std::move(args), std::move(lock));
  lock.reset();                                          // the only rank, in this process, takes it
  const StopRequest stop(StopRequest::Phase::start_up);  // before libtorch is loaded, which takes a while
  if (is_started) install_stacks_handler();              // its launcher asks where it hangs
  return torch_module().train(line);
}

int start_first_run(CommandLine* line) {
  std::unique_ptr<RunLock> lock = lock_output(*line);
  if (checks_output_of_first_run(*line)) check_output(*line);
  const FirstRun run = write_first_run(&line->arguments, world_of(*line));
  fmt::print(stderr, "{}\n", run.introduction);
  std::vector<std::string> args = {"--config", run.config};
  if (line->json) args.emplace_back("--json");
  return start_train(*line, std::move(args), /*is_started=*/false, std::move(lock));
}

// The word after --help, if there is one: a group of arguments.
std::optional<std::string> help_group(const std::vector<std::string>& args) {
  const auto help = std::ranges::find_if(args, [](const auto& word) { return word == "--help" || word == "-h"; });
  if (help == args.end() || help + 1 == args.end() || (help + 1)->starts_with('-')) return std::nullopt;
  return *(help + 1);
}

int run_train(std::vector<std::string> args) {
  if (const std::optional<std::string> group = help_group(args)) {
    fmt::print("{}", arguments_help(*group));
    return 0;
  }
  if (is_spare()) {
    torch_module().warm_up();
    wait_to_become_a_rank();
  }
  CommandLine line = parse_command_line(args);
  if (line.help) {
    fmt::print("{}{}", kTrainUsage, arguments_help());
    return 0;
  }
  use_platform(line.arguments.job.platform);              // also that of the ranks, which load it before they read this
  ::setenv("CONCORD_REPORT_WORK", "1", /*overwrite=*/0);  // simulated devices print what they did, at the end of rank 0
  const JobEnvironment environment = read_job_environment();
  const bool is_started = environment.source != JobSource::single;
  if (is_started && line.arguments.launch.nproc > 0) {
    throw ConfigError(
        fmt::format("--nproc {} starts processes, but this process was already started by {}; remove --nproc",
                    line.arguments.launch.nproc, to_string(environment.source)));
  }
  const bool is_first = is_first_run(line) && !is_started;
  if (is_first) complete_first_run(&line);
  check_places(line);
  const int64_t full = is_started ? full_world() : 0;
  const int64_t world = full > 0 ? full : is_started ? environment.world : world_of(line);
  check_arguments(line.arguments, world);
  line.arguments = resolve_arguments(line.arguments, world);
  if (line.print_config) {
    for (const std::string& note : line.notes) fmt::print(stderr, "note: {}\n", note);
    fmt::print("{}", to_yaml(line.arguments));
    return 0;
  }
  use_cached_models(&line.arguments, &line.notes);
  check_torch_module();
  if (JobBoard::of_launcher() || environment.rank != 0) return start_train(line, std::move(args), is_started);
  const ContinueLine last_line(line.arguments, {program_as_typed(), "train"}, args);
  try {
    const int exit_code = is_first ? start_first_run(&line) : start_train(line, std::move(args), is_started);
    last_line.print(exit_code, line.json);
    return exit_code;
  } catch (const std::exception& error) {
    last_line.print_after(error);
    throw;
  }
}

}  // namespace

void add_train_command(CLI::App* program, int* exit_code) {
  CLI::App* app = program->add_subcommand("train", "train a model; without arguments, a small one on generated data");
  app->set_help_flag();       // ours lists all arguments
  app->prefix_command(true);  // the remaining arguments are TrainingArguments, described elsewhere
  app->callback([app, exit_code] { *exit_code = run_train(app->remaining()); });
}

}  // namespace concord
