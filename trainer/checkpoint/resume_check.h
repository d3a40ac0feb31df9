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

// Returns name and value of the settings that determine the curves of the learning rate and the weight decay. Two
// schedules with the same texts are the same.
std::vector<std::pair<std::string, std::string>> schedule_texts(const LrSettings& settings);

// Throws one ConfigError with all settings that differ, both values of each and the flag that allows a difference, if a
// run with |plan| cannot resume |parts| of the checkpoint in |folder| with |state|. The table of settings
// (trainer/arguments/table.h) and config_fields (core/models/config_fields.h) list what is compared; layout, logging,
// saving and output_dir may differ.
void check_resumable(const std::string& folder, const TrainingState& state, const TrainingPlan& plan,
                     const ResumeParts& parts);
// Like check_resumable(), for a run that takes the weights only.
void check_same_model(const std::string& folder, const TrainingPlan& plan);

// Returns the counter of the learning rate's schedule, converted if |settings| count in a different unit (updates or
// samples) from those of |state|.
int64_t continued_lr_counter(const TrainingState& state, const LrSettings& settings);

}  // namespace concord
