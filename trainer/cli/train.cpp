#include "trainer/cli/train.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/config_error.h"
#include "core/launch/launcher.h"
#include "core/mesh/job_environment.h"
#include "trainer/arguments.h"
#include "trainer/first_run.h"
#include "trainer/output_folder.h"
#include "trainer/pretrain.h"

namespace concord {
namespace {

constexpr const char* kUsage = R"(concord train [--config FILE.yaml] [--nproc N] [--name value ...]
  trains a model, from scratch or from a Hugging Face folder, on pretraining data or chats.

  concord train                                        a small model on data made for it, 2 processes here
  concord train --config run.yaml --nproc 8            8 processes here
  torchrun --nproc_per_node 8 --no-python concord train --config run.yaml     srun and mpirun do as well
  concord train --config run.yaml --print_config       all arguments as a YAML file, checked

  --config FILE     YAML with the names below; the command line wins
  --nproc N         starts N processes on this machine
  --print_config    prints the arguments and ends
  --json            prints the result as JSON on standard output, and nothing else there
Names may be written with '-'. Flags: --bf16, --bf16 false, --no_bf16.
Exit codes: 0 trained, or stopped as asked (SIGTERM, after the step); 1 failed; 2 wrong usage.
)";

constexpr const char* kTerminal = "CONCORD_TERMINAL";

// Under a launcher standard output is a pipe; the terminal behind it can be drawn on all the same.
int open_terminal(bool json) {
  if (json) return STDERR_FILENO;
  const char* name = std::getenv(kTerminal);
  if (name == nullptr) return STDOUT_FILENO;
  const int descriptor = open(name, O_WRONLY | O_NOCTTY | O_CLOEXEC);
  return descriptor >= 0 ? descriptor : STDOUT_FILENO;
}

void print_json(const TrainOutput& output, const TrainingArguments& arguments) {
  nlohmann::ordered_json json = {{"global_step", output.global_step},
                                 {"training_loss", output.training_loss},
                                 {"reason", output.reason},
                                 {"output_dir", arguments.output_dir}};
  for (const auto& [name, value] : output.metrics) json["metrics"][name] = value;
  fmt::print("{}\n", json.dump(2));
}

std::vector<std::string> suggestions(const CommandLine& line) {
  const TrainingArguments& a = line.arguments;
  if (a.loss_floor <= 0) return {};
  const bool is_cut = a.tensor_model_parallel_size > 1;
  return {is_cut
              ? "./run train --context_parallel_size 2           every sequence cut over the two processes"
              : "./run train --tensor_model_parallel_size 2      every layer cut over the two processes, same losses",
          "./run train --max_steps 1000                    closer to the floor",
          "build/bin/concord train --print_config          all settings, as a file for --config",
          "build/bin/concord doctor                        what else this machine could run"};
}

void run_rank(const CommandLine& line) {
  RunOptions options;
  options.terminal = open_terminal(line.json);
  options.next = suggestions(line);
  const TrainOutput output = run_training(line.arguments, {}, options);
  if (line.json && read_job_environment().rank == 0) print_json(output, line.arguments);
}

// The command line without --nproc, for the processes.
std::vector<std::string> command_of_ranks(std::vector<std::string> words) {
  std::vector<std::string> command = {std::filesystem::read_symlink("/proc/self/exe").string(), "train"};
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--nproc") {
      ++i;
    } else if (!words[i].starts_with("--nproc=")) {
      command.push_back(words[i]);
    }
  }
  return command;
}

// What is wrong is said once, here, and not by each process.
void check_before_start(const CommandLine& line) {
  plan_training(line.arguments, 0, line.nproc);
  check_output_folder(line.arguments.output_dir, line.arguments.overwrite_output_dir);
}

int start_ranks(const CommandLine& line, const std::vector<std::string>& words) {
  check_before_start(line);
  if (isatty(STDOUT_FILENO) == 1 && !line.json) {
    if (const char* name = ttyname(STDOUT_FILENO)) setenv(kTerminal, name, 1);
  }
  setenv("CONCORD_LOG", "warn", 0);  // which platform was chosen is in the report, once and not a line a rank
  LaunchOptions options;
  options.nproc = static_cast<int>(line.nproc);
  options.prefix = false;
  return launch(options, command_of_ranks(words));
}

int run_train(std::vector<std::string> words) {
  CommandLine line = parse_command_line(words);
  if (line.help) {
    fmt::print("{}{}", kUsage, arguments_help());
    return 0;
  }
  const JobEnvironment environment = read_job_environment();
  const bool is_started = environment.source != JobSource::single;
  if (is_started && line.nproc > 0) {
    throw ConfigError(fmt::format("--nproc {} starts processes, but this one was started by {} already; leave it out",
                                  line.nproc, to_string(environment.source)));
  }
  const bool is_first = is_first_run(line) && !is_started;
  if (is_first) complete_first_run(&line);
  check_arguments(&line.arguments, is_started ? environment.world : line.nproc);
  if (line.print_config) {
    fmt::print("{}", to_yaml(line.arguments));
    return 0;
  }
  if (is_first) {
    check_output_folder(line.arguments.output_dir, line.arguments.overwrite_output_dir);
    const FirstRun run = write_first_run(&line.arguments, line.nproc);
    fmt::print(stderr, "{}\n", run.introduction);
    words = {"--config", run.config};
    if (line.json) words.push_back("--json");
  }
  if (line.nproc > 1) return start_ranks(line, words);
  run_rank(line);
  return 0;
}

}  // namespace

void add_train_command(CLI::App* program, int* exit_code) {
  CLI::App* app = program->add_subcommand("train", "trains a model; alone, a small one on data made for it");
  app->set_help_flag();       // ours lists all arguments
  app->prefix_command(true);  // the words are TrainingArguments, which are described elsewhere
  app->callback([app, exit_code] { *exit_code = run_train(app->remaining()); });
}

}  // namespace concord
