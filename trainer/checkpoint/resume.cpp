#include "trainer/checkpoint/resume.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "core/base/config_error.h"
#include "core/base/files/paths.h"
#include "core/base/threads.h"
#include "core/checkpoint/verify.h"
#include "core/mesh/agreement.h"
#include "core/mesh/job_environment.h"
#include "platform/loader/host.h"
#include "trainer/checkpoint/in_memory_checkpoints.h"
#include "trainer/checkpoint/output_folder.h"

namespace concord {
namespace {

constexpr int64_t kNumbers = 3;  // numbers in a generator's state
constexpr int64_t kMaxThreads = 8;

// The newest checkpoint that exists in the output_dir of every machine; -1: none.
struct CommonStep {
  int64_t step = -1;
  int64_t newest_of_any = -1;
};
CommonStep common_step(const TrainingPlan& plan, ParallelContext& job) {
  constexpr int64_t kMaxStep = std::numeric_limits<int64_t>::max();
  const bool looks = job.rank() == plan.writing_rank();
  std::vector<int64_t> steps = looks ? resumable_steps(plan.arguments.output.dir) : std::vector<int64_t>();
  CommonStep common;
  for (int64_t most = kMaxStep;; most = common.step) {
    while (!steps.empty() && steps.back() > most) steps.pop_back();
    const int64_t own = steps.empty() ? -1 : steps.back();
    common.step = all_reduce_scalar(job, looks ? own : kMaxStep, ReduceOp::kMin);
    const int64_t newest = all_reduce_scalar(job, own, ReduceOp::kMax);
    if (most == kMaxStep) common.newest_of_any = newest;
    if (common.step == newest || common.step < 0) return common;
  }
}

// Throws ConfigError, since a long run should not start again because one of its machines is new.
void refuse_to_begin_again(const TrainingPlan& plan, ParallelContext& job) {
  run_and_propagate_errors(job, [&] {
    if (job.rank() != plan.writing_rank()) return;
    const std::vector<int64_t> steps = resumable_steps(plan.arguments.output.dir);
    throw ConfigError(fmt::format(
        "save_on_each_node: there is no checkpoint that all machines have; on this one {} has {}. Copy one to the "
        "machines that lack it, or choose another output_dir for a new run",
        plan.arguments.output.dir,
        steps.empty() ? "none" : fmt::format("those of the steps {}", fmt::join(steps, ", "))));
  });
}

// Returns the newest step in the output folders of all machines, or in the shared one, which rank 0 reads.
CommonStep step_on_disk(const TrainingPlan& plan, ParallelContext& job) {
  if (plan.writers) return common_step(plan, job);
  const int64_t own = job.rank() == 0 ? newest_resumable_step(plan.arguments.output.dir).value_or(-1) : -1;
  const int64_t step = all_reduce_scalar(job, own, ReduceOp::kMax);
  return {step, step};
}

// The newest checkpoint of this run, on the disk or, after a restart, in memory; empty: none.
std::string folder_of_newest(const TrainingPlan& plan, ParallelContext& job) {
  const std::string& on_disk = plan.arguments.output.dir;
  if (plan.writers || (plan.is_restarted && has_several_machines())) {
    const auto [step, newest_of_any] = step_on_disk(plan, job);
    const std::string restored = plan.is_restarted ? restore_from_peers(step, job) : "";
    if (!restored.empty()) return restored;
    if (step < 0 && newest_of_any >= 0) refuse_to_begin_again(plan, job);
    return step >= 0 ? checkpoint_folder(on_disk, step).string() : "";
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
  const int64_t agreed = all_reduce_scalar(job, seen, ReduceOp::kMax);
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

// This rank's part of |folder|, which the ranks |readers| have to read.
void verify_part(const std::string& folder, int64_t rank, const RankRange& readers) {
  if (!has_manifest(folder)) {
    if (rank != 0) return;
    loader::log(CONCORD_LOG_WARN, "train",
                fmt::format("{} has no {}, so it cannot be verified", folder, kManifestFile));
    return;
  }
  const auto threads = static_cast<int>(cores_for_each(read_job_environment().local_world, kMaxThreads));
  const std::vector<Damage> damage =
      verify_checkpoint(folder, {.part = rank - readers.begin, .parts = readers.size(), .threads = threads});
  if (damage.empty()) return;
  throw ConfigError(
      fmt::format("{} is damaged: {}; `concord checkpoint verify {}` names everything that is; an older checkpoint is "
                  "resumed with --resume_from_checkpoint DIR",
                  folder, to_string(damage.front()), folder));
}

// Each machine reads its own: they have to be of the same save.
void check_same_on_all_machines(const std::string& folder, ParallelContext& job) {
  int64_t digest = -1;
  run_and_propagate_errors(job, [&] {
    if (has_manifest(folder)) digest = tensor_digest(read_manifest(folder));
  });
  if (all_reduce_scalar(job, digest, ReduceOp::kMin) == all_reduce_scalar(job, digest, ReduceOp::kMax)) return;
  throw ConfigError(
      fmt::format("save_on_each_node: {} has other tensors on one machine than on another, so they are not of the same "
                  "save; copy the right one to all machines, or resume from another one",
                  folder));
}

}  // namespace

void choose_checkpoint(TrainingPlan* plan, ParallelContext& job) {
  find_checkpoint(plan, job);
  if (plan->resume_from.empty()) return;
  const std::string memory = memory_folder();
  const bool is_in_memory = !memory.empty() && lies_in(plan->resume_from, memory);
  if (is_in_memory && has_several_machines()) return;  // was verified when it was merged
  if (plan->writers) check_same_on_all_machines(plan->resume_from, job);
  if (!plan->arguments.saving.verify) return;
  const RankRange readers = plan->writers.value_or(RankRange{0, job.world()});
  run_and_propagate_errors(job, [&] { verify_part(plan->resume_from, job.rank(), readers); });
}

// On one machine the page cache is what bytes would be sent from, and a disk of each machine's own is read by all of
// them in parallel; a file system that all machines share would have to deliver the same bytes repeatedly.
bool reads_together(const TrainingArguments& arguments, const std::string& folder, ParallelContext& job) {
  const AutoFlag setting = arguments.saving.share_reads;
  if (setting != AutoFlag::automatic) return setting == AutoFlag::on;
  const JobEnvironment environment = read_job_environment();
  if (environment.local_world == environment.world) return false;
  return all_reduce_scalar(job, job.rank() == 0 && is_on_network(folder) ? 1 : 0, ReduceOp::kMax) == 1;
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
