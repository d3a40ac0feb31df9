// The optimizer's state in the files of a checkpoint: optimizer.safetensors, or several and an index, beside the
// weights.
//
// A tensor "<key>.<tensor>" ("exp_avg.model.norm.weight") is the whole of a moment or of the fp32 weights, in the shape
// that the weight has without any parallelism. So files know no rank, bucket or vendor: each rank writes the elements
// that it alone has, or has by its share, at their place, and reads those that it needs. Threads: one at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "core/checkpoint/hf_weights.h"
#include "core/optim/optimizer.h"
#include "core/safetensors/index.h"

namespace concord {

using safetensors::kOptimizerStem;

// What this rank writes, for HfSaveOptions::more, with |writers| as of it. Views of the state: valid until the next
// step.
SavedTensors saved_tensors(const Optimizer& optimizer, const std::optional<RankRange>& writers = {});

// The state in the folder of a checkpoint, for Optimizer::load_state.
class OptimizerFiles : public StateSource {
 public:
  // |steps| are in the checkpoint's metadata. Throws ConfigError where there are no such files.
  OptimizerFiles(const std::string& folder, int64_t steps) : files_(folder, kOptimizerStem), steps_(steps) {}

  int64_t steps() const override { return steps_; }
  // Throws ConfigError with the file and the tensor where it is missing, is not fp32, or is too small.
  void read(const std::string& key, const std::vector<ShardRun>& runs, const at::Tensor& values) const override;

  uint64_t bytes_read() const { return bytes_read_; }  // of tensors, so far

 private:
  safetensors::Weights files_;
  int64_t steps_;
  mutable std::atomic<uint64_t> bytes_read_ = 0;
};

}  // namespace concord
