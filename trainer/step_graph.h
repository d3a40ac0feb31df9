// The forward and backward passes of training steps that are alike, recorded once and then replayed
// (core/torch/graphed_callable.h): with small micro-batches the host would take longer to enqueue the kernels than the
// device to run them.
//
// A step is enqueued kernel by kernel until the one before it was like it, once more as the work that is to be
// recorded, and from the next one on it is replayed. A step that is not like the recorded one (other shapes, other
// weights of the losses, packed sequences) ends the recording and is enqueued itself; after a few recordings that did
// not last no further one is made. What a replayed step allocates is memory of the recording: nothing is recorded where
// the device would have too little left for what is not (evaluation, other shapes).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

#include "core/models/micro_batch.h"
#include "core/pipeline/model_stage.h"
#include "core/torch/graphed_callable.h"

namespace concord {

// What the passes of a step depend on, besides the model.
struct PassInputs {
  std::vector<MicroBatch> batches;  // on the device
  std::vector<double> weights;      // of their losses (loss_weights)
  std::vector<double> router_weights;
  double loss_scale = 1;
  bool has_fp8_history = false;
  bool hold = false;  // as in DistributedDataParallel::begin_step; such a step is never replayed
};

// Whether a recording of one of them is right for the other, but for the tokens. Dropout is not considered: with it no
// two steps are alike.
bool can_replay(const PassInputs& a, const PassInputs& b);

struct StepPasses {
  at::Tensor losses;                         // see logged_losses
  std::vector<ModelStage::Results> results;  // of each stage
};

// Threads: the one that trains.
class StepGraph {
 public:
  // |enqueue| does the passes of a step, after which all gradients are there. |replayed| is told after each replay,
  // which writes to the tensors of |passes|. They are called until the end of this object.
  using Enqueue = std::function<StepPasses(const PassInputs& inputs)>;
  using Replayed = std::function<void(const PassInputs& inputs, const StepPasses& passes)>;
  // Without |is_wanted| every step is enqueued.
  StepGraph(c10::Device device, bool is_wanted, Enqueue enqueue, Replayed replayed);

  // The losses; of a replayed step they are the same tensor each time. Throws what |enqueue| throws.
  at::Tensor run(PassInputs inputs);

 private:
  void begin_recording(const PassInputs& inputs);
  void end_recording();
  at::Tensor run_recorded(const PassInputs& inputs);

  c10::Device device_;
  bool is_wanted_;
  Enqueue enqueue_;
  Replayed replayed_;
  PassInputs first_;                     // of the first of the steps that are alike
  int alike_ = 0;                        // steps after it
  int replays_ = 0;                      // of the recording
  int wasted_ = 0;                       // recordings that did not last
  PassInputs fixed_;                     // what is recorded reads them
  StepPasses passes_;                    // of the recording
  std::optional<GraphedCallable> work_;  // released before what it writes to
};

}  // namespace concord
