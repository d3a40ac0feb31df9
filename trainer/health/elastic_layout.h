// How a job goes on when some of its ranks cannot be brought back: fewer data-parallel replicas, and more micro-batches
// on each, so that every step has the same samples as before. A replica needs all of its tensor-, pipeline- and
// context-parallel ranks, so the number of ranks falls by whole replicas.
//
// Example:
//   const RankBudget job{.world = 8, .tensor = 2, .global_batch = 32, .micro_batch = 2};
//   const ElasticLayout next = shrink_world(job, 1);  // 4 ranks: 2 replicas with 8 micro-batches; 3 do not divide 16
//
// Pure functions of plain values, but for full_world, which reads a variable.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/arguments/training_arguments.h"

namespace concord {

struct RankBudget {
  int64_t world = 1;
  int64_t tensor = 1, pipeline = 1, context = 1;
  int64_t global_batch = 1;  // samples of a step
  int64_t micro_batch = 1;   // samples of a forward pass
};

struct ElasticLayout {
  int64_t world = 0;
  int64_t data_parallel = 0;
  int64_t accumulation = 0;  // micro-batches of a rank in a step
  std::string refusal = {};  // why there is no such layout; empty: there is
  bool operator==(const ElasticLayout&) const = default;
};

// The largest layout that does without |lost| ranks.
ElasticLayout shrink_world(const RankBudget& job, int64_t lost);

// Of arguments that were checked for |world| ranks.
RankBudget rank_budget(const TrainingArguments& arguments, int64_t world);

// All numbers of ranks that the job can run with, |world| first, in descending order; those that the pipeline's
// schedule or the layout of experts does not allow are left out.
std::vector<int> allowed_world_sizes(const TrainingArguments& arguments, int64_t world);

// For a rank of a job that goes on with |world| of |full| ranks, for which the arguments were checked. Throws
// ConfigError where that cannot be.
void keep_global_batch(TrainingArguments* arguments, int64_t full, int64_t world);

// How many ranks the arguments are for where the launcher goes on with fewer; 0: this is all of them.
int64_t full_world();

}  // namespace concord
