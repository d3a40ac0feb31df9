// The 8-bit layers of a chunk, and with delayed scaling what they remember from step to step: for the input, the weight
// and the gradient of each layer the largest absolute values of the last steps, over all ranks that have the layer, so
// that they are the same under any layout of tensor, context and data parallelism. Threads: one at a time.
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

  // The layer of weight |name|, for as long as this lives. All of them are added before the first step.
  Fp8Layer* add(const std::string& name);
  bool empty() const { return layers_.empty(); }
  // Whether passes scale by what earlier steps have seen. The kernels of those that do not are others.
  bool has_history() const { return has_history_; }

  // Weights have changed, or may have.
  void forget_weights();
  // Whether the inputs of later passes count; in passes of training.
  void count_inputs(bool count);
  // Ends a step. |updated| is false if the step was skipped, so that its amax values are dropped. All ranks of |group|,
  // which are those that have these layers, call it. Waits: for them, as Work::wait does.
  void end_step(bool updated, ProcessGroup& group);

  // In the files of a checkpoint, fp8.safetensors: "<weight>.amax_history" [steps, 3], newest first. |writes|: this
  // rank is the one of |group| that does.
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
  bool has_history_ = false;  // before that, tensors are scaled by their own
};

}  // namespace concord
