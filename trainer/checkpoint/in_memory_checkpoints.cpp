#include "trainer/checkpoint/in_memory_checkpoints.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <cstdlib>
#include <filesystem>
#include <limits>
#include <utility>
#include <vector>

#include "core/base/bytes_text.h"
#include "core/base/job_board.h"
#include "core/checkpoint/read/machine_copies.h"
#include "core/mesh/agreement.h"
#include "core/models/parameter_plan.h"
#include "platform/loader/error.h"
#include "platform/loader/host.h"
#include "trainer/checkpoint/output_folder.h"

namespace concord {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRestored = "restored";  // in the launcher's folder: what this attempt has begun with

// Maximum size of a checkpoint: weights in fp32, main weights, two moments.
constexpr int64_t kBytesPerParameter = 16;
constexpr int64_t kAtOnce = 2;  // the new one is written before the old one is removed

int64_t free_bytes(const std::string& folder) {
  struct statvfs info{};
  if (::statvfs(folder.c_str(), &info) != 0) return 0;
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

// Returns whether any machine has no folder, for example for lack of /dev/shm.
bool folder_is_missing(ParallelContext& job, const std::string& folder) {
  return all_reduce_scalar(job, folder.empty() ? 1 : 0, ReduceOp::kMax) != 0;
}

}  // namespace

std::string memory_folder() {
  const char* folder = std::getenv(kMemoryFolderVariable);
  return folder != nullptr ? folder : "";
}

bool has_several_machines() {
  const char* machines = std::getenv("GROUP_WORLD_SIZE");  // as in torchrun
  return machines != nullptr && std::atoi(machines) > 1;
}

std::string restore_from_peers(int64_t than, ParallelContext& job) {
  const std::string folder = memory_folder();
  std::vector<int64_t> steps;
  for (const auto& each : folder.empty() ? std::vector<fs::path>{} : checkpoints_in(folder)) {
    steps.push_back(*checkpoint_step(each));
  }
  for (int64_t below = std::numeric_limits<int64_t>::max();;) {
    // The newest one on any machine that was not looked at yet.
    std::erase_if(steps, [&](int64_t step) { return step >= below; });
    below = all_reduce_scalar(job, steps.empty() ? -1 : steps.back(), ReduceOp::kMax);
    if (below <= than) return "";
    const std::string whole = checkpoint_folder(fs::path(folder) / kRestored, below).string();
    try {
      if (folder_is_missing(job, folder)) continue;
      if (merge_copies(checkpoint_folder(folder, below).string(), whole, job)) return whole;
    } catch (const Error&) {
      throw;
    } catch (const std::runtime_error& error) {
      if (job.rank() != 0) continue;
      loader::log(CONCORD_LOG_WARN, "train",
                  fmt::format("the checkpoint of step {} in memory cannot be used: {}", below, error.what()));
    }
  }
}

InMemoryCheckpoints::InMemoryCheckpoints(const TrainingPlan& plan, ParallelContext& job)
    : job_(job), folder_(memory_folder()) {
  if (plan.arguments.recovery.memory_steps == 0) return;
  if (has_several_machines() ? folder_is_missing(job, folder_) : folder_.empty()) return;
  const int64_t parameters =
      plan.adapter ? adapter_parameters(plan.config, *plan.adapter) : parameter_count(plan.config);
  const int64_t needed = parameters * kBytesPerParameter * kAtOnce;
  const int64_t available = free_bytes(folder_);
  every_ = plan.arguments.recovery.memory_steps;
  if (all_reduce_scalar(job, available < needed ? 1 : 0, ReduceOp::kMax) == 0) return;
  switch_off(
      fmt::format("two of them need up to {}, and {} has {} free; enlarge it (docker run --shm-size), or set {} to "
                  "a larger folder in memory",
                  bytes_text(needed), folder_, bytes_text(available), kMemoryDirVariable));
}

void InMemoryCheckpoints::start(VirtualModels& model, int64_t step, HfSaveOptions options) {
  // Called when this one is complete on all machines: there is always one that all of them have.
  options.after_publish = [folder = folder_] {
    rotate_checkpoints(folder, 1);
    fs::remove_all(fs::path(folder) / kRestored);
  };
  options.overwrite = true;
  options.replicated = has_several_machines();
  if (options.replicated) options.memory_limit = 2 * options.chunk_bytes;
  const SaveJob::Source source = options.replicated ? SaveJob::Source::live : SaveJob::Source::copy;
  try {
    save_ = model.start_save(checkpoint_folder(folder_, step), std::move(options), source, plan_);
    if (source == SaveJob::Source::live) save_->wait();
  } catch (const Error&) {
    throw;  // a rank is lost, or the device
  } catch (const std::runtime_error& error) {
    return give_up_this_one(error.what());
  }
  plan_ = save_->plan();
  started_ = step;
}

bool InMemoryCheckpoints::advance(SaveJob::Progress of_all_ranks) {
  if (!save_) return false;
  try {
    save_->advance(of_all_ranks);
  } catch (const Error&) {
    throw;
  } catch (const std::runtime_error& error) {
    give_up_this_one(error.what());
    return false;
  }
  if (!save_->is_done()) return false;
  save_.reset();
  newest_ = started_;
  is_failing_ = false;
  return true;
}

// A full disk may have room again by then.
void InMemoryCheckpoints::give_up_this_one(const std::string& why) {
  save_.reset();
  if (std::exchange(is_failing_, true) || job_.rank() != 0) return;
  loader::log(CONCORD_LOG_WARN, "train",
              fmt::format("a checkpoint in memory could not be written: {}; Concord retries every {} steps; until "
                          "then a restart resumes from an older one",
                          why, every_));
}

void InMemoryCheckpoints::switch_off(const std::string& why) {
  save_.reset();
  every_ = 0;
  if (job_.rank() != 0) return;
  loader::log(
      CONCORD_LOG_WARN, "train",
      fmt::format("in-memory checkpoints are disabled ({}); a restart resumes from the newest checkpoint on disk",
                  why));
}

}  // namespace concord
