// FP8 state of a chunk's linear layers. With delayed scaling it holds the amax history of each layer's input, weight
// and gradient: the largest absolute values of the last steps, reduced over all ranks that hold the layer, and so equal
// under every layout of tensor, context and data parallelism. Threads: one at a time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/checkpoint/hf_weights.h"
#include "core/mesh/process_group.h"
#include "core/models/precision/fp8_args.h"
#include "core/ops/precision/fp8_layer.h"

namespace concord {

class Fp8Layers {
 public:
  // Throws ConfigError for an invalid number.
  Fp8Layers(const Fp8Args& args, c10::Device device);

  // Adds the layer whose weight is |name|; the pointer is valid as long as this object. Call before the first step.
  Fp8Layer* add(const std::string& name);
  bool empty() const { return layers_.empty(); }
  // Whether passes scale by the history. Passes before the first step scale by the current tensors, with other kernels.
  bool has_history() const { return has_history_; }

  // Drops the FP8 copies of the weights. Call after the weights may have changed.
  void forget_weights();
  // Sets whether the amax values of inputs are recorded, as in training, in the passes that follow.
  void count_inputs(bool count);
  // Ends a step. |updated| is false if the step was skipped; its amax values are then dropped. Every rank of |group|,
  // the ranks that hold these layers, calls it. Waits: for them, like Work::wait.
  void end_step(bool updated, ProcessGroup& group);

  // Returns the history as stored in a checkpoint's fp8.safetensors: "<weight>.amax_history" [steps, 3], latest first.
  // |writes|: whether this rank writes the state.
  SavedTensors saved(bool writes) const;
  // Loads the state from the folder of a checkpoint, if it has one. Throws ConfigError, with the tensor, if one is
  // missing or its shape differs.
  void load(const std::string& folder);

 private:
  static constexpr int64_t kTensors = 3;  // input, weight, gradient

  void make_room();
  void follow();

  struct Named {
    std::string name;
    std::unique_ptr<Fp8Layer> layer;
  };
  Fp8Args args_;
  c10::Device device_;
  std::vector<Named> layers_;
  at::Tensor history_;        // [layers, steps, 3]
  at::Tensor amax_, seen_;    // [layers, 3]
  bool has_history_ = false;  // false: tensors are scaled by their own amax
};

}  // namespace concord
