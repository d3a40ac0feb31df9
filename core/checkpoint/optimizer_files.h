// The optimizer state in the files of a checkpoint, next to the weights: optimizer.safetensors, or several files and an
// index.
//
// A tensor "<key>.<tensor>" ("exp_avg.model.norm.weight") is a whole moment or the whole fp32 weights, in the shape of
// the weight without any parallelism, and in the type in which the run kept it: 8-bit codes have their scales in
// "<key>.absmax.<tensor>". So files do not depend on ranks, buckets
// or vendors: each rank writes its part of the elements at their global positions, and reads those that it needs.
// Threads: one at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint/hf_weights.h"
#include "core/checkpoint/read/optimizer_state.h"
#include "core/parallel/parameter.h"
#include "core/safetensors/index.h"

namespace concord {

using safetensors::kOptimizerStem;

// Returns the tensors that this rank writes, for HfSaveOptions::more: |entries| as the state of |tensors|, which are
// Optimizer::saved_state() and state_tensors(). They are views of the state, valid until the next step.
SavedTensors saved_tensors(const std::vector<StateTensor>& tensors, std::vector<OptimizerState::Entry> entries);

// Reads the state in the folder of a checkpoint, for Optimizer::load_state.
class OptimizerFiles : public StateSource {
 public:
  // |steps| are in the checkpoint's metadata. Throws ConfigError if there are no such files.
  OptimizerFiles(const std::string& folder, int64_t steps) : files_(folder, kOptimizerStem), steps_(steps) {}

  int64_t steps() const override { return steps_; }
  // Throws ConfigError, with the file and the tensor, if it is missing, has another type, or is too small.
  void read(const std::string& key, const std::vector<ShardRun>& runs, const at::Tensor& values) const override;

  bool has_codes(const std::string& key, const std::string& tensor, c10::ScalarType type) const override;

  // Returns the keys of |tensors| that are stored in another type, as text: "exp_avg from F32 to BF16". Empty: none.
  std::string conversions(const std::vector<StateTensor>& tensors) const;

  uint64_t bytes_read() const { return bytes_read_; }  // bytes of tensors read so far

 private:
  bool has_remainders(const std::string& key, const std::string& tensor) const;
  const safetensors::Weights::Tensor& find(const std::string& name, int64_t last) const;

  safetensors::Weights files_;
  int64_t steps_;
  mutable std::atomic<uint64_t> bytes_read_ = 0;
};

}  // namespace concord
