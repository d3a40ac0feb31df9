#include "trainer/cli/rank_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base/config_error.h"
#include "core/base/parse_json.h"
#include "core/base/quoted.h"
#include "core/launch/job/restart_policy.h"
#include "core/launch/launcher.h"
#include "core/mesh/job_environment.h"
#include "trainer/arguments/table.h"
#include "trainer/checkpoint/output_folder.h"
#include "trainer/cli/print_error.h"
#include "trainer/report/files.h"

namespace concord {
namespace {

namespace fs = std::filesystem;

// Arguments that say how a run begins.
constexpr std::string_view kOfTheStart[] = {
    "resume_from_checkpoint", "overwrite_output_dir",        "finetune", "no_load_optim", "no_load_rng",
    "ignore_data_skip",       "override_opt_param_scheduler"};

// Returns the name of the option that |word| begins, with '_'; empty if it begins none.
std::string option_name(const std::string& word) {
  if (!word.starts_with("--")) return "";
  std::string name = word.substr(2, word.find('=') - 2);
  std::ranges::replace(name, '-', '_');
  return name;
}

}  // namespace

std::vector<std::string> rank_command(const std::vector<std::string>& args) {
  std::vector<std::string> command = {std::filesystem::read_symlink("/proc/self/exe").string()};
  for (size_t i = 0; i < args.size(); ++i) {
    if (find_launch_argument(option_name(args[i])) == nullptr) {
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

std::vector<std::string> args_to_continue(const std::vector<std::string>& args) {
  std::vector<std::string> kept;
  for (size_t i = 0; i < args.size(); ++i) {
    if (std::ranges::find(kOfTheStart, option_name(args[i])) == std::ranges::end(kOfTheStart)) {
      kept.push_back(args[i]);
    } else if (args[i].find('=') == std::string::npos && i + 1 < args.size() && !args[i + 1].starts_with("--")) {
      ++i;
    }
  }
  const ResumeArguments of_file = parse_command_line(kept).arguments.resume;
  const auto reset = [&](bool is_set, const char* name) {
    if (is_set) kept.insert(kept.end(), {name, "false"});
  };
  reset(of_file.finetune, "--finetune");
  reset(of_file.no_load_optim, "--no_load_optim");
  reset(of_file.no_load_rng, "--no_load_rng");
  reset(of_file.ignore_data_skip, "--ignore_data_skip");
  kept.insert(kept.end(), {"--resume_from_checkpoint", "true"});
  return kept;
}

ContinueLine::ContinueLine(const TrainingArguments& arguments, std::vector<std::string> before,
                           std::vector<std::string> args)
    : arguments_(arguments), before_(std::move(before)), args_(std::move(args)), first_(newest()) {}

std::optional<ContinueLine::Checkpoint> ContinueLine::newest() const {
  const std::optional<int64_t> step = newest_resumable_step(arguments_.output.dir);
  if (!step) return std::nullopt;
  std::error_code error;  // a folder that is removed meanwhile
  return Checkpoint{*step, fs::last_write_time(checkpoint_folder(arguments_.output.dir, *step), error)};
}

// Whether the newest checkpoint belongs to this run, and not to one that it has not replaced yet.
bool ContinueLine::has_own_checkpoint() const {
  const std::optional<Checkpoint> last = newest();
  return last && (last != first_ || resumes_from_newest(arguments_));
}

// Whether a run without errors ended before its last step, and can be expected to be started again.
bool ContinueLine::is_unfinished() const {
  if (arguments_.steps.exit_interval == 0 && arguments_.steps.exit_duration_in_mins == 0) return false;
  const auto state = json_or_discarded(read_if_there(arguments_.output.dir + "/trainer_state.json"));
  return state.is_object() && state.value("global_step", int64_t{0}) < state.value("max_steps", int64_t{0});
}

std::string ContinueLine::text() const {
  std::vector<std::string> words = before_;
  const std::vector<std::string> args = args_to_continue(args_);
  words.insert(words.end(), args.begin(), args.end());
  return "continue: " + shell_command(words) + "\n";
}

void ContinueLine::print(int exit_code, bool json) const {
  if (exit_code == kExitUsage || (exit_code == 0 && !is_unfinished()) || !has_own_checkpoint()) return;
  const bool has_failed = exit_code > 0 && exit_code < 128;
  std::FILE* const out = has_failed || json ? stderr : stdout;
  std::fputs(text().c_str(), out);
  std::fflush(out);
}

void ContinueLine::print_after(const std::exception& error) const {
  bool is_due = has_own_checkpoint();
  if (dynamic_cast<const ConfigError*>(&error) != nullptr) {
    is_due = false;  // unless it is that refusal, to which a rank adds its number
    try {
      check_output_folder(output_request(arguments_, {}));
    } catch (const ConfigError& refusal) {
      is_due = newest().has_value() && std::string_view(error.what()).starts_with(refusal.what());
    }
  }
  if (is_due) set_last_line(text());
}

}  // namespace concord
