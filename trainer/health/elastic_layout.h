// The layout of a job that has lost some of its ranks: fewer data-parallel replicas, and more micro-batches on each, so
// that every step has the same samples as before. A replica needs all of its tensor-, pipeline- and context-parallel
// ranks, so the number of ranks falls by whole replicas.
//
// Example:
//   const RankBudget job{.world = 8, .tensor = 2, .global_batch = 32, .micro_batch = 2};
//   const ElasticLayout next = shrink_world(job, 1);  // 4 ranks: 2 replicas with 8 micro-batches; 3 do not divide 16
//
// Pure functions of plain values, except full_world, which reads an environment variable.
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
  std::string refusal = {};  // why no layout exists; empty: one exists
  bool operator==(const ElasticLayout&) const = default;
};

// Returns the largest layout without |lost| ranks.
ElasticLayout shrink_world(const RankBudget& job, int64_t lost);

// Returns the budget of arguments that were checked for |world| ranks.
RankBudget rank_budget(const TrainingArguments& arguments, int64_t world);

// Returns all numbers of ranks that the job can run with, from |world| down, without those that the pipeline schedule
// or the layout of experts does not allow.
std::vector<int> allowed_world_sizes(const TrainingArguments& arguments, int64_t world);

// Adapts |arguments|, which were checked for |full| ranks, to a job that continues with |world| of them. Throws
// ConfigError if no such layout exists.
void keep_global_batch(TrainingArguments* arguments, int64_t full, int64_t world);

// Returns the number of ranks that the arguments describe if the launcher continues with fewer; 0: the job has all
// ranks.
int64_t full_world();

}  // namespace concord
