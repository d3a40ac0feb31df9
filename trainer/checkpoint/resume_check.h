// Whether a run may continue a checkpoint: what has to be the same in both, and the flag that allows a difference.
// Needs no libtorch, so that mistakes are reported before any process is started. Threads: plain values and pure
// functions, which read config.json of the checkpoint.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/optim/lr_schedule.h"
#include "trainer/checkpoint/training_state.h"
#include "trainer/plan.h"

namespace concord {

// The parts of |state| that say what the run is: data, batch, schedules, arguments. check_resumable compares them.
void describe_run(const TrainingPlan& plan, TrainingState* state);

// The values that the curves of the learning rate and the weight decay depend on, name and value each; without those
// that do not count for this curve. Two schedules with the same texts are the same.
std::vector<std::pair<std::string, std::string>> schedule_texts(const LrSettings& settings);

// Throws one ConfigError with all that differs, both values of each and what allows it, where a run with |plan| that
// takes |parts| of |folder|, whose state is |state|, would not be the continuation of it. Not compared is what may
// change: layout, logging, saving, output_dir, the number of steps as far as nothing above depends on it.
void check_resumable(const std::string& folder, const TrainingState& state, const TrainingPlan& plan,
                     const ResumeParts& parts);
// The same for a run that takes the weights only.
void check_same_model(const std::string& folder, const TrainingPlan& plan);

// The counter of the learning rate's schedule, where |settings| may count in another unit (updates or samples) than
// those that |state| was saved with.
int64_t continued_lr_counter(const TrainingState& state, const LrSettings& settings);

}  // namespace concord
