// The forward and backward passes of identical training steps, recorded once and then replayed
// (core/torch/graphed_callable.h): with small micro-batches the host takes longer to launch the kernels than the device
// to run them.
//
// Steps are launched kernel by kernel until several in a row are identical except for their tokens; the next one is
// recorded, and later ones are replayed. A step that differs (shapes, loss weights, packed sequences) discards the
// recording and is launched; after a few short-lived recordings no more are made. A recording owns the memory that its
// step allocates, so nothing is recorded if too little memory would remain for other work (evaluation, other shapes).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

#include "core/models/micro_batch.h"
#include "core/pipeline/model_stage.h"
#include "core/torch/graphed_callable.h"

namespace concord {

// Inputs of the passes of a step, besides the model.
struct PassInputs {
  std::vector<MicroBatch> batches;  // on the device
  std::vector<double> weights;      // factors of their losses (loss_weights)
  std::vector<double> router_weights;
  double loss_scale = 1;
  bool has_fp8_history = false;
  bool defer_reduction = false;  // see run_or_replay; such steps are never replayed
};

// Returns whether a recording of a step with inputs |a| can be replayed with the tokens of |b|. Steps with dropout can
// never be replayed, which the caller has to exclude.
bool can_replay(const PassInputs& a, const PassInputs& b);

struct StepPasses {
  at::Tensor losses;                         // see logged_losses
  std::vector<ModelStage::Results> results;  // results per stage
};

// Threads: training thread only.
class StepGraph {
 public:
  // Without |is_wanted| no step is recorded.
  StepGraph(c10::Device device, bool is_wanted);

  // Runs the passes of a step and leaves all gradients in their buffers. A recording keeps a copy of it.
  using Passes = std::function<StepPasses(const PassInputs& inputs)>;
  // Called after each replay, which wrote to the tensors of |passes|.
  using Replayed = std::function<void(const PassInputs& inputs, const StepPasses& passes)>;
  // Calls |run| or replays its recording, and returns the losses; a replay returns the same tensor each time. Throws
  // what |run| throws.
  at::Tensor run_or_replay(const PassInputs& inputs, const Passes& run, const Replayed& replayed);

 private:
  void begin_recording(const PassInputs& inputs, const Passes& run);
  void end_recording();
  at::Tensor run_recorded(const PassInputs& inputs, const Replayed& replayed);

  c10::Device device_;
  bool is_wanted_;
  PassInputs first_;                     // inputs of the first of the identical steps
  int identical_ = 0;                    // identical steps after |first_|
  int replays_ = 0;                      // replays of the current recording
  int wasted_ = 0;                       // short-lived recordings
  PassInputs fixed_;                     // inputs that the recording reads
  StepPasses passes_;                    // outputs that the recording writes
  std::optional<GraphedCallable> work_;  // declared last: released before the tensors that it writes to
};

}  // namespace concord
