#include "trainer/memory_checkpoints.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <cstdlib>

#include "core/bytes_text.h"
#include "core/job_board.h"
#include "core/mesh/agreement.h"
#include "core/models/parameter_plan.h"
#include "platform/loader/error.h"
#include "platform/loader/host.h"
#include "trainer/output_folder.h"

namespace concord {
namespace {

// Of a checkpoint, at most: weights in 32 bits, main weights, two moments.
constexpr int64_t kBytesPerParameter = 16;
constexpr int64_t kAtOnce = 2;  // the new one is written before the old one is removed

int64_t free_bytes(const std::string& folder) {
  struct statvfs info{};
  if (::statvfs(folder.c_str(), &info) != 0) return 0;
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

}  // namespace

std::string memory_folder() {
  const char* folder = std::getenv(kMemoryFolderVariable);
  return folder != nullptr ? folder : "";
}

MemoryCheckpoints::MemoryCheckpoints(const TrainingPlan& plan, ParallelContext& job)
    : job_(job), folder_(memory_folder()) {
  if (plan.arguments.recovery.memory_steps == 0 || folder_.empty()) return;
  const int64_t parameters =
      plan.adapter ? adapter_parameters(plan.config, *plan.adapter) : parameter_count(plan.config);
  const int64_t needed = parameters * kBytesPerParameter * kAtOnce;
  const int64_t available = free_bytes(folder_);
  every_ = plan.arguments.recovery.memory_steps;
  if (reduced(job, available < needed ? 1 : 0, ReduceOp::kMax) == 0) return;
  switch_off(
      fmt::format("two of them need up to {}, and {} has {} free; enlarge it (docker run --shm-size), or set {} to "
                  "a larger folder in memory",
                  bytes_text(needed), folder_, bytes_text(available), kMemoryDirVariable));
}

void MemoryCheckpoints::start(VirtualModels& model, int64_t step, HfSaveOptions options) {
  options.after_publish = [folder = folder_] { keep_newest(folder, 1); };
  options.overwrite = true;
  try {
    save_ = model.start_save(checkpoint_folder(folder_, step), std::move(options), SaveJob::Source::copy, plan_);
  } catch (const Error&) {
    throw;  // a rank is lost, or the device
  } catch (const std::runtime_error& error) {
    return switch_off(error.what());
  }
  plan_ = save_->plan();
  started_ = step;
}

bool MemoryCheckpoints::advance(SaveJob::Progress of_all_ranks) {
  if (!save_) return false;
  try {
    save_->advance(of_all_ranks);
  } catch (const Error&) {
    throw;
  } catch (const std::runtime_error& error) {
    switch_off(error.what());
    return false;
  }
  if (!save_->is_done()) return false;
  save_.reset();
  newest_ = started_;
  return true;
}

void MemoryCheckpoints::switch_off(const std::string& why) {
  save_.reset();
  every_ = 0;
  if (job_.rank() != 0) return;
  loader::log(CONCORD_LOG_WARN, "train",
              fmt::format("no checkpoints in memory; a restart goes on from the newest one on the disk: {}", why));
}

}  // namespace concord
