// The data of a run: opens the training, evaluation and test data that its arguments name. Threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/mesh/rank_layout.h"
#include "trainer/plan.h"

namespace concord {

// Splits a list at its commas, without the spaces around the parts, as LLaMA-Factory reads such lists.
std::vector<std::string> between_commas(const char* argument, const std::string& text);

// Sets the data of |rank| and opens it; |provided| takes the place of files that the arguments name.
void plan_data(TrainingPlan* plan, const RankLayout& layout, int64_t rank, Datasets provided);

}  // namespace concord
