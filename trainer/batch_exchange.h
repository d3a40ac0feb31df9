// Micro-batches and generators handed to the neighbouring replica, to compute a step on another device.
#pragma once

#include <vector>

#include "core/mesh/parallel_context.h"
#include "core/models/micro_batch.h"

namespace concord {

// Inputs of forward and backward besides the weights.
struct StepInputs {
  std::vector<MicroBatch> batches;  // on the host, with labels
  std::vector<RngState> rng;
};

// Returns the inputs of the next data-parallel rank; the last rank gets those of the first. Every rank calls it, with
// generators of the same names. Waits: for both neighbours.
StepInputs inputs_of_next_replica(ParallelContext& job, const StepInputs& own);

// Convert inputs to one list of numbers and back. |names| provides the names of the generators.
std::vector<int64_t> to_numbers(const StepInputs& inputs);
StepInputs from_numbers(const std::vector<int64_t>& numbers, const std::vector<RngState>& names);

}  // namespace concord
