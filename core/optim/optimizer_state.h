// The state of an optimizer without the layout that computed it: every value has a global address, the name of its
// tensor and the index there (core/parallel/shard_spec.h). Checkpoints write it, any other layout can load it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/parallel/shard_spec.h"

namespace concord {

struct OptimizerState {
  struct Entry {
    std::string key;             // "exp_avg", "exp_avg_sq", "momentum" or "main" (fp32 weights)
    std::vector<ShardRun> runs;  // tensor, global indices; |local| counts from the beginning of |values|
    at::Tensor values;           // fp32, on the host, flat
  };
  int64_t steps = 0;
  std::vector<Entry> entries;
};

// The part of |runs| in [begin, end) of the rank's tensor; |local| then counts from |begin|.
std::vector<ShardRun> cut_runs(const std::vector<ShardRun>& runs, int64_t begin, int64_t end);

}  // namespace concord
