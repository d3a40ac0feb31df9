#include "trainer/cli/chaos.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/base/config_error.h"
#include "core/base/files/run_lock.h"
#include "core/base/recovery_log.h"
#include "core/launch/processes/process_start.h"
#include "core/launch/processes/signal_queue.h"
#include "core/launch/watch/failure_report.h"
#include "trainer/arguments/arguments.h"
#include "trainer/cli/chaos_report.h"

extern char** environ;

namespace concord {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kChaosFooter =
    R"(Runs the job twice, without faults and with them, in reference/ and faults/ of its output_dir, and compares them:
every checkpoint, the model and the metrics must be bitwise identical.
  concord chaos --faults 10 -- train --nproc 4 --max_steps 400 --save_steps 100 --output_dir out
  concord chaos --seed 7 --faults 5 --kinds kill,stop -- train --config run.yaml --nproc 8 --output_dir out
  concord chaos --faults 20 --every 60 -- train --nproc 4 --max_steps 6000 --output_dir out

Kinds: kill (SIGKILL), stop (SIGSTOP), hang (it does nothing any more), delay (a pause, no failure), disconnect (all its
connections break), bitflip (of a weight), disk (nothing can be written any more), nan (a weight), slow (each further
step of the process takes 30 ms longer; see --straggler_action). The same seed makes the same faults. With --every 60
one of them comes in each minute, at a random moment, while the job runs: the same ranks and kinds, at other steps.
Ctrl-C, SIGTERM and SIGHUP stop the job; it ends with this program, also if that is killed.
Exit codes: 0 the results are the same; 1 they are not, or the job did not survive; 2 wrong usage; 128 + signal: stopped
by that signal.)";

struct ChaosOptions {
  uint64_t seed = 1;
  int64_t faults = 5;
  std::string kinds = "kill,stop,delay";
  double every = 0;  // seconds; 0: at random steps
  bool json = false;
  std::vector<std::string> command;
};

struct Run {
  int wait_status = -1;
  double seconds = 0;
  int stop_signal = 0;  // that came meanwhile and was passed on to it; 0: none
};

std::vector<std::string> environment_with(const std::vector<std::string>& variables) {
  std::vector<std::string> environment = variables;  // getenv finds the first of two with the same name
  for (char** entry = environ; *entry; ++entry) environment.emplace_back(*entry);
  return environment;
}

// Waits for the end of |process|, and passes signals on to it.
Run await_end(pid_t process, SignalQueue* signals) {
  Run run;
  const auto begin = std::chrono::steady_clock::now();
  for (;;) {
    const pid_t ended = ::waitpid(process, &run.wait_status, WNOHANG);
    if (ended == process || (ended < 0 && errno != EINTR)) break;
    pollfd arrived{signals->fd(), POLLIN, 0};
    ::poll(&arrived, 1, -1);  // its end is a signal, too
    for (const SignalQueue::Entry& entry : signals->take()) {
      if (entry.signal == SIGCHLD) continue;
      ::kill(process, entry.signal);
      if (is_stop_signal(entry.signal) && run.stop_signal == 0) run.stop_signal = entry.signal;
    }
  }
  run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return run;
}

// Waits for its end. Its output goes to |log|. The program is a launcher, which the kernel kills with this process, and
// the ranks with it.
Run run_program(const std::vector<std::string>& args, const std::vector<std::string>& variables, const fs::path& log) {
  ProcessCommand command;
  command.program = fs::read_symlink("/proc/self/exe").string();
  command.arguments = {command.program};
  command.arguments.insert(command.arguments.end(), args.begin(), args.end());
  command.environment = environment_with(variables);
  const UniqueFd output(::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!output) throw std::system_error(errno, std::generic_category(), log.string());
  command.output = output.get();
  SignalQueue signals;
  return await_end(start_process(command).pid, &signals);
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// What does not depend on the clock, of each line.
std::vector<Json> comparable_lines(const fs::path& path) {
  std::vector<Json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const Json json = Json::parse(line, nullptr, false);
    Json kept;
    for (const char* key : {"step", "loss", "grad_norm", "learning_rate", "eval_loss", "tokens"}) {
      if (json.is_object() && json.contains(key)) kept[key] = json[key];
    }
    lines.push_back(std::move(kept));
  }
  return lines;
}

// What differs between the results; empty: nothing.
std::vector<std::string> differences(const fs::path& a, const fs::path& b) {
  std::vector<std::string> found;
  const auto tensors_in = [](const fs::path& folder) {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.path().extension() == ".safetensors") names.push_back(fs::relative(entry.path(), folder).string());
    }
    std::sort(names.begin(), names.end());
    return names;
  };
  const std::vector<std::string> names = tensors_in(a);
  if (names != tensors_in(b)) found.emplace_back("not the same checkpoints");
  for (const std::string& name : names) {
    if (fs::exists(b / name) && text_of(a / name) != text_of(b / name)) found.push_back(name);
  }
  if (comparable_lines(a / "metrics.jsonl") != comparable_lines(b / "metrics.jsonl"))
    found.emplace_back("metrics.jsonl");
  return found;
}

std::string seconds_text(const std::optional<double>& seconds) {
  return seconds ? fmt::format("{:.2f} s", *seconds) : "-";
}

std::string rank_text(const FaultOutcome& outcome) {
  return outcome.named_rank ? fmt::format("{}", *outcome.named_rank) : "-";
}

std::string_view remark(const FaultOutcome& outcome) {
  if (!outcome.happened) return "  did not happen";
  return outcome.is_overtaken ? "  its process was replaced before, after another fault" : "";
}

void print(const ChaosReport& report, const std::vector<std::string>& different, double reference_seconds) {
  fmt::print("{:>4}  {:<10} {:>5} {:>6}  {:>10} {:>6} {:>15} {:>11}\n", "", "fault", "rank", "step", "detected",
             "named", "training again", "lost steps");
  for (size_t i = 0; i < report.outcomes.size(); ++i) {
    const FaultOutcome& each = report.outcomes[i];
    fmt::print("{:>4}  {:<10} {:>5} {:>6}  {:>10} {:>6} {:>15} {:>11}{}\n", i + 1, to_string(each.fault.kind),
               each.fault.rank, each.fault.step, seconds_text(each.detected_seconds), rank_text(each),
               seconds_text(each.training_seconds), each.lost_steps, remark(each));
  }
  fmt::print("{} recoveries; {:.1f} s of training ({:.1f} s without faults), {:.1f} % of it effective\n",
             report.recoveries, report.seconds, reference_seconds, 100 * report.effective);
  if (different.empty()) fmt::print("the result is bitwise identical to that of the run without faults\n");
  for (const std::string& name : different) fmt::print("differs from the run without faults: {}\n", name);
}

Json to_json(const ChaosReport& report, const std::vector<std::string>& different, double reference_seconds) {
  Json faults = Json::array();
  for (const FaultOutcome& each : report.outcomes) {
    const auto value = [](const std::optional<double>& seconds) { return seconds ? Json(*seconds) : Json(nullptr); };
    const Json named = each.named_rank ? Json(*each.named_rank) : Json(nullptr);
    faults.push_back({{"kind", to_string(each.fault.kind)},
                      {"rank", each.fault.rank},
                      {"step", each.fault.step},
                      {"happened", each.happened},
                      {"overtaken", each.is_overtaken},
                      {"named_rank", named},
                      {"detected_seconds", value(each.detected_seconds)},
                      {"training_seconds", value(each.training_seconds)},
                      {"lost_steps", each.lost_steps}});
  }
  return {{"faults", faults},
          {"recoveries", report.recoveries},
          {"seconds", report.seconds},
          {"reference_seconds", reference_seconds},
          {"effective_training_time", report.effective},
          {"identical", different.empty()},
          {"differences", different}};
}

// "train", and what follows it, for one of the two runs.
std::vector<std::string> args_of_run(const ChaosOptions& options, const fs::path& output, bool restarts) {
  std::vector<std::string> args = options.command;
  args.insert(args.end(), {"--output_dir", output.string()});
  if (restarts) args.insert(args.end(), {"--max_restarts", "3"});
  return args;
}

void expect_success(const char* which, const Run& run, const fs::path& log) {
  if (run.wait_status == 0) return;
  throw std::runtime_error(fmt::format("the run {} ended with {}; its output is in {}", which,
                                       describe_wait_status(run.wait_status), log.string()));
}

int stopped(const Run& run) {
  fmt::print(stderr, "concord chaos: stopped by {}\n", signal_name(run.stop_signal));
  return 128 + run.stop_signal;
}

// Nothing but what an earlier chaos has written is overwritten, and that only where the job may overwrite its folder.
void check_folder(const fs::path& folder, bool may_overwrite) {
  constexpr std::string_view kOurs[] = {"reference", "faults", "reference.log", "faults.log", "recovery.jsonl"};
  if (!fs::exists(folder)) return;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name == kRunLockFile) continue;
    if (std::ranges::find(kOurs, name) == std::ranges::end(kOurs)) {
      throw ConfigError(
          fmt::format("output_dir '{}' contains '{}', which concord chaos has not written; choose another "
                      "folder",
                      folder.string(), name));
    }
    if (!may_overwrite) {
      throw ConfigError(
          fmt::format("output_dir '{}' contains '{}'; choose another folder, or pass "
                      "--overwrite_output_dir after train to replace what an earlier chaos has left",
                      folder.string(), name));
    }
  }
}

int run_chaos(const ChaosOptions& options) {
  if (options.command.empty() || options.command.front() != "train") {
    throw ConfigError("give the job after --, e.g. concord chaos --faults 10 -- train --nproc 4 --output_dir out ...");
  }
  const std::vector<std::string> args(options.command.begin() + 1, options.command.end());
  const CommandLine line = parse_command_line(args);
  const int64_t steps = line.arguments.steps.max_steps;
  if (line.arguments.launch.nproc < 1)
    throw ConfigError("give --nproc: the launcher that survives the faults is that of concord train");
  if (line.arguments.launch.nnodes > 1)
    throw ConfigError("--nnodes: concord chaos runs a job of one launcher; remove it");
  if (steps < 2) throw ConfigError("give --max_steps: faults come at random steps of the run");
  const std::vector<FaultKind> kinds = parse_fault_kinds(options.kinds);
  const std::vector<Fault> faults =
      options.every > 0 ? plan_faults_by_time(options.seed, options.faults, kinds, line.arguments.launch.nproc,
                                              static_cast<int64_t>(1000 * options.every))
                        : plan_faults(options.seed, options.faults, kinds, line.arguments.launch.nproc, steps);
  const bool has_restarts = std::ranges::find(line.given, "max_restarts") != line.given.end();
  const fs::path folder = line.arguments.output.dir, log = folder / "recovery.jsonl";
  const RunLock lock(folder, "");
  check_folder(folder, line.arguments.output.overwrite);
  fs::create_directories(folder);
  if (!options.json) fmt::print("running {} steps without faults\n", steps);
  const Run reference = run_program(args_of_run(options, folder / "reference", false), {}, folder / "reference.log");
  if (reference.stop_signal != 0) return stopped(reference);
  expect_success("without faults", reference, folder / "reference.log");
  if (!options.json) fmt::print("running them with {} faults (seed {})\n", faults.size(), options.seed);
  fs::remove(log);
  const Run run = run_program(args_of_run(options, folder / "faults", !has_restarts),
                              {fmt::format("{}={}", kFaultsVariable, to_string(faults)),
                               fmt::format("{}={}", kRecoveryLogVariable, log.string())},
                              folder / "faults.log");
  if (run.stop_signal != 0) return stopped(run);
  expect_success("with faults", run, folder / "faults.log");
  const ChaosReport report = read_recoveries(faults, steps, text_of(log));
  const std::vector<std::string> different = differences(folder / "reference", folder / "faults");
  if (options.json) {
    fmt::print("{}\n", to_json(report, different, reference.seconds).dump(1));
  } else {
    print(report, different, reference.seconds);
  }
  return different.empty() ? 0 : 1;
}

}  // namespace

void add_chaos_command(CLI::App* program, int* exit_code) {
  const auto options = std::make_shared<ChaosOptions>();
  CLI::App* app = program->add_subcommand("chaos", "train under faults, and compare with the run without them");
  app->footer(kChaosFooter);
  app->add_option("--seed", options->seed, "of the faults")->capture_default_str();
  app->add_option("--faults", options->faults, "number of faults")->capture_default_str()->check(CLI::Range(0, 4096));
  app->add_option("--kinds", options->kinds, "kinds of faults to choose from")->capture_default_str();
  app->add_option("--every", options->every,
                  "one fault every this many seconds, at a random moment, instead of at random steps")
      ->check(CLI::Range(0.1, 1e6));
  app->add_flag("--json", options->json, "print the report as JSON");
  app->add_option("command", options->command, "train and its arguments, after --");
  app->callback([options, exit_code] { *exit_code = run_chaos(*options); });
}

}  // namespace concord
