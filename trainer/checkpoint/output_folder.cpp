#include "trainer/checkpoint/output_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>

#include "core/base/config_error.h"
#include "core/base/files/paths.h"
#include "core/base/job_board.h"
#include "core/base/parse_json.h"
#include "core/base/quoted.h"
#include "core/checkpoint/manifest.h"
#include "core/checkpoint/save_folder.h"
#include "platform/loader/host.h"
#include "trainer/arguments/table.h"
#include "trainer/checkpoint/training_state.h"
#include "trainer/report/files.h"

namespace concord {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kCheckpoint = "checkpoint-";
constexpr const char* kSetAside = ".not-on-all-machines";
constexpr const char* kModelFolder = "model";
constexpr const char* kAverageFolder = "ema_model";
constexpr std::string_view kFilesOfARun[] = {"metrics.jsonl",
                                             "eval_metrics.jsonl",
                                             "test_results.json",
                                             "samples.jsonl",
                                             "rank_times.jsonl",
                                             "trainer_state.json",
                                             "runs",
                                             "report.html",
                                             kModelFolder,
                                             kAverageFolder,
                                             "predictions.jsonl",
                                             "profile",
                                             "training_args.yaml"};

bool is_model_folder(const fs::path& path) {
  std::error_code error;
  return (path.filename() == kModelFolder || path.filename() == kAverageFolder) && fs::is_directory(path, error);
}

std::vector<fs::path> left_by_a_run(const fs::path& folder) {
  std::vector<fs::path> found = own_checkpoints_in(folder);
  for (const std::string_view name : kFilesOfARun) {
    std::error_code error;
    if (fs::exists(folder / name, error)) found.push_back(folder / name);
  }
  return found;
}

// The folder itself, or its nearest existing parent.
fs::path nearest_existing(fs::path path) {
  std::error_code error;
  path = fs::absolute(path, error).lexically_normal();
  while (!fs::exists(path, error) && path.has_relative_path()) path = path.parent_path();
  return path;
}

// The job of the last run in the folder; empty if it had no name or the mark cannot be read.
std::string marked_job(const fs::path& folder) {
  if (!has_run_mark(folder)) return {};
  const auto mark = json_or_discarded(read_if_there((folder / kRunMark).string()));
  return mark.is_object() && mark.contains("job") && mark["job"].is_string() ? mark["job"].get<std::string>() : "";
}

bool is_own_attempt(const OutputRequest& request) {
  return request.is_restarted && !request.job.empty() && marked_job(request.folder) == request.job;
}

// Returns whether |request| resumes the run in its folder. A run that ended before its first save has no checkpoint to
// resume from, but nothing to lose either.
bool resumes_there(const OutputRequest& request) {
  if (!request.resumes || !has_run_mark(request.folder)) return false;
  const auto is_there = [&](const char* name) {
    std::error_code error;
    return fs::exists(request.folder / name, error);
  };
  const bool has_saved =
      !own_checkpoints_in(request.folder).empty() || is_there(kModelFolder) || is_there("trainer_state.json");
  return !has_saved || newest_resumable_step(request.folder).has_value();
}

// Later checkpoints belong to a course of the run that is given up: they would be mixed with those to come.
void check_nothing_later(const OutputRequest& request) {
  const std::optional<int64_t> resumed =
      request.resume_from.empty() ? newest_resumable_step(request.folder) : checkpoint_step(request.resume_from);
  const std::vector<fs::path> found = own_checkpoints_in(request.folder);
  if (found.empty() || !resumed || *checkpoint_step(found.back()) <= *resumed) return;
  throw ConfigError(
      fmt::format("output_dir '{}' contains {}, which is later than step {} that the run resumes from; choose another "
                  "output_dir, or move it away",
                  request.folder.string(), found.back().filename().string(), *resumed));
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

void check_inputs(const OutputRequest& request, const std::vector<fs::path>& removed) {
  for (const fs::path& input : request.inputs) {
    for (const fs::path& left : removed) {
      if (input.empty() || !lies_in(input, left)) continue;
      throw ConfigError(
          fmt::format("'{}' is an input of this run, and --overwrite_output_dir would delete it together with '{}'; "
                      "copy it elsewhere, or choose another output_dir",
                      input.string(), left.string()));
    }
  }
}

void check_writable(const OutputRequest& request) {
  const std::string name = request.folder.string();
  const fs::path existing = nearest_existing(request.folder);
  if (!fs::is_directory(existing)) {
    throw ConfigError(fmt::format("output_dir '{}': '{}' is a file, not a folder; choose another output_dir", name,
                                  existing.string()));
  }
  if (::access(existing.c_str(), W_OK | X_OK) != 0) {
    throw ConfigError(fmt::format("output_dir '{}': cannot write to '{}' ({}); choose another folder", name,
                                  existing.string(), std::generic_category().message(errno)));
  }
}

// A save of such a step would find it in its way.
void check_nothing_foreign(const OutputRequest& request) {
  for (const fs::path& each : checkpoints_in(request.folder)) {
    if (is_own_checkpoint(each)) continue;
    throw ConfigError(
        fmt::format("output_dir '{}' contains '{}', which was not written by Concord (it has neither {} nor {}) and "
                    "will not be replaced; move it away, or choose another folder",
                    request.folder.string(), each.filename().string(), kManifestFile, kMetadataFile));
  }
}

}  // namespace

std::optional<int64_t> checkpoint_step(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kCheckpoint)) return std::nullopt;
  int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data() + kCheckpoint.size(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return step;
}

fs::path checkpoint_folder(const fs::path& folder, int64_t step) {
  return folder / fmt::format("{}{}", kCheckpoint, step);
}

std::vector<fs::path> checkpoints_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (checkpoint_step(entry.path())) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end(),
            [](const fs::path& a, const fs::path& b) { return *checkpoint_step(a) < *checkpoint_step(b); });
  return found;
}

bool is_own_checkpoint(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error) && (has_manifest(path.string()) || can_resume_from(path.string()));
}

std::vector<fs::path> own_checkpoints_in(const fs::path& folder) {
  std::vector<fs::path> found = checkpoints_in(folder);
  std::erase_if(found, [](const fs::path& each) { return !is_own_checkpoint(each); });
  return found;
}

std::optional<int64_t> newest_resumable_step(const fs::path& folder) {
  const std::vector<fs::path> found = own_checkpoints_in(folder);
  const auto newest =
      std::find_if(found.rbegin(), found.rend(), [](const fs::path& each) { return can_resume_from(each.string()); });
  return newest == found.rend() ? std::nullopt : checkpoint_step(*newest);
}

std::vector<int64_t> resumable_steps(const fs::path& folder) {
  std::vector<int64_t> steps;
  for (const fs::path& each : own_checkpoints_in(folder)) {
    if (can_resume_from(each.string())) steps.push_back(*checkpoint_step(each));
  }
  return steps;
}

std::vector<std::string> rename_newer_checkpoints(const fs::path& folder, int64_t step) {
  std::vector<std::string> names;
  for (const fs::path& each : own_checkpoints_in(folder)) {
    if (*checkpoint_step(each) <= step) continue;
    fs::path name = each.string() + kSetAside;
    for (int number = 2; fs::exists(name); ++number) name = fmt::format("{}{}.{}", each.string(), kSetAside, number);
    fs::rename(each, name);
    names.push_back(name.filename().string());
  }
  return names;
}

void rotate_checkpoints(const fs::path& folder, int64_t limit, const fs::path& best) {
  if (limit <= 0) return;
  std::vector<fs::path> removable = own_checkpoints_in(folder);
  auto left = static_cast<int64_t>(removable.size());
  if (!removable.empty()) removable.pop_back();
  std::erase_if(removable, [&](const fs::path& each) {
    std::error_code ignored;
    return !best.empty() && fs::equivalent(each, best, ignored);
  });
  for (const fs::path& oldest : removable) {
    if (left-- <= limit) return;
    remove_saved_folder(oldest.string());
  }
}

bool has_run_mark(const fs::path& folder) {
  std::error_code error;
  return fs::is_regular_file(fs::symlink_status(folder / kRunMark, error));
}

void leave_run_mark(const fs::path& folder, const std::string& job) {
  const nlohmann::ordered_json mark = {{"format", 1}, {"job", job}};
  replace_file((folder / kRunMark).string(), mark.dump() + "\n");
}

bool is_restarted_attempt() {
  const std::string restarts = variable("TORCHELASTIC_RESTART_COUNT");
  return !restarts.empty() && restarts != "0";
}

OutputRequest output_request(const TrainingArguments& arguments, const std::vector<std::string>& more) {
  OutputRequest request{.folder = arguments.output.dir, .overwrite = arguments.output.overwrite};
  request.inputs.assign(more.begin(), more.end());
  for (const std::string& path : input_paths(arguments)) request.inputs.emplace_back(path);
  request.is_restarted = is_restarted_attempt();
  const std::string& resume = arguments.saving.resume_from;
  if (!resumes_from_newest(arguments)) request.resume_from = resume;
  if (!request.resume_from.empty()) request.inputs.push_back(request.resume_from);
  request.resumes = !arguments.resume.finetune &&
                    (resumes_from_newest(arguments) || (!resume.empty() && lies_in(resume, arguments.output.dir)));
  request.job = variable(kJobVariable);
  if (request.job.empty()) request.job = variable("CONCORD_LAUNCH_ID");
  if (request.job.empty()) {
    request.job = variable("TORCHELASTIC_RUN_ID");
    request.is_unique_job = false;
  }
  if (request.job == "none") request.job.clear();  // what torchrun calls every job without --rdzv_id or --standalone
  return request;
}

std::unique_ptr<RunLock> lock_output_folder(const OutputRequest& request) {
  check_writable(request);
  const std::string launcher = variable(kRunLockVariable);
  RunLockOptions options{.shares = !launcher.empty() || request.is_unique_job || request.is_restarted};
  if (launcher.empty() && std::atoi(variable("TORCHELASTIC_MAX_RESTARTS").c_str()) > 0) options.launcher = ::getppid();
  options.on_watch = [&](const LockHolder& holder) {
    loader::log(CONCORD_LOG_WARN, "train",
                fmt::format("process {} on {} has left {}; watching whether it still runs", holder.pid,
                            quoted(holder.host), (request.folder / kRunLockFile).string()));
  };
  return std::make_unique<RunLock>(request.folder, launcher.empty() ? request.job : launcher, options);
}

void check_not_in_use(const OutputRequest& request) {
  if (request.is_restarted) return;
  const std::optional<LockHolder> holder = live_holder_of(request.folder);
  if (holder) refuse_locked_folder(request.folder, *holder);
}

std::unique_ptr<RunLock> lock_for_ranks(const OutputRequest& request) {
  ::setenv(kRunLockVariable, make_nonce().c_str(), 1);
  return lock_output_folder(request);
}

void check_output_folder(const OutputRequest& request) {
  check_writable(request);
  const std::string name = request.folder.string();
  if (is_own_attempt(request)) return;
  check_nothing_foreign(request);
  const std::vector<fs::path> left = left_by_a_run(request.folder);
  if (left.empty()) return;
  if (resumes_there(request)) return check_nothing_later(request);
  const std::string first = left.front().filename().string();
  if (!has_run_mark(request.folder)) {
    throw ConfigError(
        fmt::format("output_dir '{}' contains '{}' but no {}, so it was not written by Concord and will not be "
                    "deleted; choose another folder, or move it away",
                    name, first, kRunMark));
  }
  if (request.is_restarted) {
    throw ConfigError(
        fmt::format("output_dir '{}' contains a run of another job ({}), and a restarted job deletes nothing; choose "
                    "another folder",
                    name, first));
  }
  if (!request.overwrite) {
    throw ConfigError(
        fmt::format("output_dir '{}' contains another run ({}); choose another folder, pass --resume_from_checkpoint "
                    "true to continue that run, or --overwrite_output_dir to delete it",
                    name, first));
  }
  check_inputs(request, left);
  for (const fs::path& each : left) {
    if (!is_model_folder(each) || foreign_files_in(each.string()).empty()) continue;
    throw ConfigError(
        fmt::format("'{}' was not written by Concord, and --overwrite_output_dir would delete it; move it away",
                    (each / foreign_files_in(each.string()).front()).string()));
  }
}

void prepare_output_folder(const OutputRequest& request) {
  check_output_folder(request);
  std::error_code error;
  fs::create_directories(request.folder, error);
  if (error) {
    throw ConfigError(fmt::format("cannot create output_dir '{}': {}", request.folder.string(), error.message()));
  }
  if (is_own_attempt(request)) return;
  if (resumes_there(request)) return leave_run_mark(request.folder, request.job);  // for further attempts of this job
  for (const fs::path& left : left_by_a_run(request.folder)) {
    try {
      if (checkpoint_step(left) || is_model_folder(left)) {
        remove_saved_folder(left.string());
      } else {
        fs::remove_all(left);
      }
    } catch (const std::runtime_error& problem) {
      throw ConfigError(fmt::format("cannot delete '{}': {}", left.string(), problem.what()));
    }
  }
  leave_run_mark(request.folder, request.job);
}

}  // namespace concord
