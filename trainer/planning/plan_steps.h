// The number of steps of a run, and the learning-rate schedules over them. Threads: any.
#pragma once

#include <cstdint>
#include <optional>

#include "trainer/plan.h"

namespace concord {

// Returns the number of samples of |steps| steps; nullopt if it exceeds 63 bits.
std::optional<int64_t> samples_of_steps(const DataArguments& data, int64_t steps);

// Sets the steps and schedules of |plan|, whose data is open.
void plan_steps(TrainingPlan* plan);

}  // namespace concord
