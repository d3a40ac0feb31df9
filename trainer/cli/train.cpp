#include "trainer/cli/train.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>

#include "core/config_error.h"
#include "core/launch/launcher.h"
#include "core/mesh/job_environment.h"
#include "trainer/arguments.h"
#include "trainer/cli/rank_command.h"
#include "trainer/first_run.h"
#include "trainer/output_folder.h"
#include "trainer/plan.h"
#include "trainer/stop_request.h"
#include "trainer/torch_module/loader.h"

namespace concord {
namespace {

constexpr const char* kTrainUsage = R"(concord train [--config FILE.yaml] [--nproc N] [--name value ...]
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
SIGTERM, SIGINT and SIGHUP end it after the step, with everything saved, within exit_signal_grace seconds; a second
one ends it at once.
Exit codes: 0 trained; 1 failed; 2 wrong usage; 128 + signal stopped by it after saving (143: SIGTERM).
)";

void check_output(const CommandLine& line) { check_output_folder(output_request(line.arguments, {line.config})); }

// What is wrong is said once, here, and not by each process.
void check_train(const CommandLine& line) {
  plan_training(line.arguments, 0, line.nproc);
  check_output(line);
}

int start_train_ranks(const CommandLine& line, std::vector<std::string> words) {
  check_train(line);
  if (isatty(STDOUT_FILENO) == 1 && !line.json) {
    if (const char* name = ttyname(STDOUT_FILENO)) setenv(kTerminalVariable, name, 1);
  }
  LaunchOptions options;
  options.nproc = static_cast<int>(line.nproc);
  options.prefix = false;
  words.insert(words.begin(), "train");
  return launch(options, rank_command(words));
}

int run_train(std::vector<std::string> words) {
  CommandLine line = parse_command_line(words);
  if (line.help) {
    fmt::print("{}{}", kTrainUsage, arguments_help());
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
    for (const std::string& note : line.notes) fmt::print(stderr, "note: {}\n", note);
    fmt::print("{}", to_yaml(line.arguments));
    return 0;
  }
  check_torch_module();
  if (is_first) {
    check_output(line);
    const FirstRun run = write_first_run(&line.arguments, line.nproc);
    fmt::print(stderr, "{}\n", run.introduction);
    words = {"--config", run.config};
    if (line.json) words.push_back("--json");
  }
  setenv("CONCORD_LOG", "warn", 0);  // which platform was chosen is in the first lines, once and not once per rank
  if (line.nproc > 1) return start_train_ranks(line, words);
  const StopRequest stop(StopRequest::Phase::start_up);  // before libtorch is loaded, which takes a while
  return torch_module().train(line);
}

}  // namespace

void add_train_command(CLI::App* program, int* exit_code) {
  CLI::App* app = program->add_subcommand("train", "trains a model; alone, a small one on data made for it");
  app->set_help_flag();       // ours lists all arguments
  app->prefix_command(true);  // the words are TrainingArguments, which are described elsewhere
  app->callback([app, exit_code] { *exit_code = run_train(app->remaining()); });
}

}  // namespace concord
