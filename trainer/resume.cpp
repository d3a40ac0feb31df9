#include "trainer/resume.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>

#include "core/checkpoint/verify.h"
#include "core/config_error.h"
#include "core/mesh/agreement.h"
#include "core/mesh/job_environment.h"
#include "core/paths.h"
#include "core/threads.h"
#include "platform/loader/host.h"
#include "trainer/memory_checkpoints.h"
#include "trainer/output_folder.h"

namespace concord {
namespace {

constexpr int64_t kNumbers = 3;  // of a generator's state
constexpr int64_t kMostThreads = 8;

// The newest checkpoint of this run, on the disk or, after a restart, in memory. Rank 0 looks; empty: none.
std::string folder_of_newest(const TrainingPlan& plan, ParallelContext& job) {
  const std::string& on_disk = plan.arguments.output.dir;
  if (plan.is_restarted && has_several_machines()) {
    const int64_t step =
        reduced(job, job.rank() == 0 ? newest_resumable_step(on_disk).value_or(-1) : -1, ReduceOp::kMax);
    const std::string restored = restore_from_machines(step, job);
    return restored.empty() && step >= 0 ? checkpoint_folder(on_disk, step).string() : restored;
  }
  const std::string in_memory = plan.is_restarted ? memory_folder() : "";
  int64_t seen = -1;
  if (job.rank() == 0) {
    const int64_t disk_step = newest_resumable_step(on_disk).value_or(-1);
    const int64_t memory_step = in_memory.empty() ? -1 : newest_resumable_step(in_memory).value_or(-1);
    if (std::max(disk_step, memory_step) >= 0) {
      seen = 2 * std::max(disk_step, memory_step) + (memory_step > disk_step ? 1 : 0);
    }
  }
  const int64_t agreed = reduced(job, seen, ReduceOp::kMax);
  if (agreed < 0) return "";
  return checkpoint_folder(agreed % 2 == 1 ? in_memory : on_disk, agreed / 2).string();
}

void find_checkpoint(TrainingPlan* plan, ParallelContext& job) {
  const TrainingArguments& a = plan->arguments;
  const bool is_named = !a.saving.resume_from.empty() && !resumes_from_newest(a);
  plan->resume_parts = resume_parts(a);
  plan->resume_from = is_named ? a.saving.resume_from : "";
  // An attempt after the first has checkpoints of its own, later than the one that was named.
  if (!plan->is_restarted && (is_named || a.saving.resume_from.empty())) return;
  const std::string folder = folder_of_newest(*plan, job);
  if (!folder.empty()) {
    plan->resume_from = folder;
    // What it left out when it began, it has by now.
    if (plan->is_restarted && read_training_state(plan->resume_from).job == plan->job) plan->resume_parts = {};
  } else if (!is_named && job.rank() == 0) {
    loader::log(CONCORD_LOG_WARN, "train",
                fmt::format("{} has no checkpoint to resume from; the run starts at the first step", a.output.dir));
  }
}

// This rank's part of |folder|.
void verify_part(const std::string& folder, int64_t rank, int64_t world) {
  if (!has_manifest(folder)) {
    if (rank != 0) return;
    loader::log(CONCORD_LOG_WARN, "train",
                fmt::format("{} has no {}, so it cannot be verified", folder, kManifestFile));
    return;
  }
  const auto threads = static_cast<int>(cores_for_each(read_job_environment().local_world, kMostThreads));
  const std::vector<Damage> damage = verify_checkpoint(folder, {.part = rank, .parts = world, .threads = threads});
  if (damage.empty()) return;
  throw ConfigError(
      fmt::format("{} is damaged: {}; `concord checkpoint verify {}` names everything that is; an older checkpoint is "
                  "resumed with --resume_from_checkpoint DIR",
                  folder, to_string(damage.front()), folder));
}

}  // namespace

void choose_checkpoint(TrainingPlan* plan, ParallelContext& job) {
  find_checkpoint(plan, job);
  if (plan->resume_from.empty() || !plan->arguments.saving.verify) return;
  if (has_several_machines() && lies_in(plan->resume_from, memory_folder())) return;  // its parts were verified
  run_together(job, [&] { verify_part(plan->resume_from, job.rank(), job.world()); });
}

// On one machine the page cache is what bytes would be sent from, and a disk of each machine's own is read by all of
// them in parallel; a file system that all machines share is where the same bytes would be asked for again and again.
bool reads_together(const TrainingArguments& arguments, const std::string& folder, ParallelContext& job) {
  const std::string& setting = arguments.saving.share_reads;
  if (setting != "auto") return setting == "true";
  const JobEnvironment environment = read_job_environment();
  if (environment.local_world == environment.world) return false;
  return reduced(job, job.rank() == 0 && is_on_network(folder) ? 1 : 0, ReduceOp::kMax) == 1;
}

SavedLayout saved_layout(const TrainingPlan& plan, const ParallelContext& job) {
  const RankLayout& layout = job.layout();
  return {.world = layout.world(),
          .tp = layout.tp(),
          .pp = layout.pp(),
          .vpp = plan.schedule.vpp,
          .cp = layout.cp(),
          .dp = layout.dp(),
          .ep = layout.ep(),
          .etp = layout.etp(),
          .order = plan.arguments.job.order,
          .platform = std::string(job.platform().name())};
}

std::vector<std::vector<RngState>> all_generators(ParallelContext& job) {
  const std::vector<RngState> own = job.rng().save();
  const auto count = static_cast<int64_t>(own.size()) * kNumbers;
  at::Tensor numbers = at::empty({count}, at::kLong);
  int64_t* at = numbers.data_ptr<int64_t>();
  for (const RngState& each : own) {
    for (const uint64_t number : {each.state.key, each.state.subsequence, each.state.offset}) {
      *at++ = static_cast<int64_t>(number);
    }
  }
  numbers = numbers.to(job.torch_device());
  at::Tensor all = at::empty({count * job.world()}, numbers.options());
  job.world_group().all_gather(all, numbers).wait();
  all = all.to(at::kCPU);
  std::vector<std::vector<RngState>> ranks(static_cast<size_t>(job.world()), own);
  const int64_t* next = all.data_ptr<int64_t>();
  for (std::vector<RngState>& rank : ranks) {
    for (RngState& each : rank) {
      each.state = {static_cast<uint64_t>(next[0]), static_cast<uint64_t>(next[1]), static_cast<uint64_t>(next[2])};
      next += kNumbers;
    }
  }
  return ranks;
}

void restore_generators(const TrainingState& state, const TrainingPlan& plan, ParallelContext& job) {
  if (state.rng.empty()) return;
  const SavedLayout own = saved_layout(plan, job);
  if (state.layout.has_same_ranks(own) && state.rng.size() == static_cast<size_t>(own.world)) {
    job.rng().restore(state.rng[static_cast<size_t>(job.rank())]);
    return;
  }
  std::vector<RngState> streams = job.rng().save();
  for (RngState& stream : streams) {
    for (const RngState& saved : state.rng.front()) {
      if (saved.name == stream.name) stream.state.offset = saved.state.offset;
    }
  }
  job.rng().restore(streams);
}

}  // namespace concord
