// What a run does to continue from a checkpoint, besides reading tensors. Every rank calls these; they wait for all
// ranks. Threads: the one that trains.
#pragma once

#include <string>
#include <vector>

#include "core/mesh/parallel_context.h"
#include "trainer/checkpoint/training_state.h"
#include "trainer/plan.h"

namespace concord {

// Sets the plan's resume_from and resume_parts: the checkpoint that the run is to resume, and what of it. Empty where
// it starts at the first step, because nobody asks for more or there is none yet (then rank 0 says so). Rank 0 looks,
// so that all ranks take the same one; of machines with an output_dir each (plan->writers) one rank on each, and the
// newest that all of them have is taken. An attempt that was restarted takes its own newest checkpoint, and all of it.
// The ranks verify its checksums, each a part. Throws ConfigError where it is damaged, and
// where machines have checkpoints but not the same.
void choose_checkpoint(TrainingPlan* plan, ParallelContext& job);

// Whether the ranks read the files in |folder| together, each byte once per data-parallel group, as
// ckpt_fully_parallel_load says. Rank 0 looks at the file system, so that all ranks do the same.
bool reads_together(const TrainingArguments& arguments, const std::string& folder, ParallelContext& job);

// The layout of this run, as a checkpoint says it.
SavedLayout saved_layout(const TrainingPlan& plan, const ParallelContext& job);

// The generators of all ranks, by rank.
std::vector<std::vector<RngState>> all_generators(ParallelContext& job);
// Under the layout that wrote them they continue on every rank. Under another one each rank keeps its own key, which
// follows from the seed and its place, and continues from where the first rank's streams were.
void restore_generators(const TrainingState& state, const TrainingPlan& plan, ParallelContext& job);

}  // namespace concord
