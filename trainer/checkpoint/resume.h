// Steps of resuming from a checkpoint other than reading tensors. Every rank calls these functions; they wait for all
// ranks. Threads: training thread only.
#pragma once

#include <string>
#include <vector>

#include "core/mesh/parallel_context.h"
#include "trainer/checkpoint/training_state.h"
#include "trainer/plan.h"

namespace concord {

// Sets the plan's resume_from and resume_parts: the checkpoint to resume from, and which parts of it. Empty if the run
// starts at the first step, because it was not asked to resume or there is no checkpoint yet (which rank 0 logs). Rank
// 0 reads the folder, so that all ranks take the same checkpoint; if each machine has its own output_dir
// (plan->writers), one rank per machine does, and the newest that exists on all machines is taken. A restarted attempt
// resumes all of its own newest checkpoint. The ranks verify its checksums together. Throws ConfigError if it is
// damaged, or if machines have different checkpoints.
void choose_checkpoint(TrainingPlan* plan, ParallelContext& job);

// Returns whether the ranks read the files in |folder| together, each byte once per data-parallel group, according to
// ckpt_fully_parallel_load. Rank 0 inspects the file system, so that all ranks decide the same.
bool reads_together(const TrainingArguments& arguments, const std::string& folder, ParallelContext& job);

// Returns the layout of this run in the form that checkpoints store.
SavedLayout saved_layout(const TrainingPlan& plan, const ParallelContext& job);

// Returns the states of the generators, by rank.
std::vector<std::vector<RngState>> all_generators(ParallelContext& job);
// Restores the generators. Under the layout that wrote |state| they continue on every rank. Under a different layout
// each rank keeps its own key, which depends on the seed and its position, and continues at the offsets of rank 0.
void restore_generators(const TrainingState& state, const TrainingPlan& plan, ParallelContext& job);

}  // namespace concord
