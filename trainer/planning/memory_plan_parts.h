// Parts of the memory plan, only for the sources behind memory_plan.h.
#pragma once

#include <string>
#include <vector>

#include "core/models/parameter_plan.h"
#include "trainer/planning/memory_plan.h"

namespace concord {

// The type of weights and activations.
struct ModelType {
  DType dtype = DType::kF32;
  const char* name = "fp32";
  int64_t bytes() const { return size_of(dtype); }
};
ModelType model_type(const TrainingArguments& arguments);

// Returns the stages of |rank|, its chunks, as indices of plan.stages.
std::vector<size_t> stages_of_rank(const TrainingPlan& plan, const RankLayout& layout, int64_t rank);

// Adds weights, gradients and the optimizer's state.
void place_state(const TrainingPlan& plan, const RankLayout& layout, int64_t rank, MemoryPlan* memory);
// Adds activations, logits and what exists only while they are computed.
void place_activations(const TrainingPlan& plan, const RankLayout& layout, int64_t rank, const MicroBatchShape& batch,
                       MemoryPlan* memory);

}  // namespace concord
