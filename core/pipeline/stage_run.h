// A stage in a run: what its micro-batches keep from their forward to the end of their backward. That is the input, for
// its gradient, and the graph of the output; the output itself lives as long as others need it (Megatron's
// deallocate_pipeline_outputs). Threads: one at a time.
#pragma once

#include <memory>
#include <vector>

#include "core/ops/grad_sink.h"
#include "core/pipeline/stage.h"

namespace torch::autograd {
struct Edge;
}

namespace concord {

class StageRun {
 public:
  struct Options {
    int microbatches = 1;
    bool first = true;           // of the model
    bool last = true;            // of the model
    bool differentiates = true;  // there are backwards; else nothing is kept
    // Where weight gradients are deferred until weight_grad, shared by all stages of the rank: those that a backward
    // adds to it are its micro-batch's, whichever stage owns the parameter. Null: they are made in backward.
    DeferredWgrads* later = nullptr;
  };
  StageRun(Stage& stage, const Options& options);
  ~StageRun();
  StageRun(const StageRun&) = delete;
  StageRun& operator=(const StageRun&) = delete;

  Stage& stage() const { return stage_; }

  // Around a run: the stage is told where to defer weight gradients to, and when the run ends.
  void begin();
  void end();
  // Returns the output for the next stage, without its graph; undefined on the last stage.
  at::Tensor forward(int microbatch, at::Tensor input);
  // Returns the spec of forward's output, which is also that of its gradient.
  const ValueSpec& output_spec(int microbatch) const { return saved(microbatch).output; }
  // |grad| of the output; undefined on the last stage. Returns the gradient of the input; undefined on the first stage.
  at::Tensor input_grad(int microbatch, at::Tensor grad);
  // The weight gradients that were deferred in input_grad of this micro-batch; all others stay.
  void weight_grad(int microbatch);

 private:
  struct Saved {
    Saved();
    Saved(Saved&&) noexcept;
    Saved& operator=(Saved&&) noexcept;
    ~Saved();

    at::Tensor input;
    ValueSpec output;
    std::unique_ptr<torch::autograd::Edge> graph;  // null if the output depends on nothing that has a gradient
    at::Tensor one;                                // on the last stage: the gradient of the loss with respect to itself
    DeferredWgrads halves;
  };
  Saved& saved(int microbatch) { return saved_[static_cast<size_t>(microbatch)]; }
  const Saved& saved(int microbatch) const { return saved_[static_cast<size_t>(microbatch)]; }
  void keep(Saved& saved, const at::Tensor& output) const;

  Stage& stage_;
  Options options_;
  std::vector<Saved> saved_;
};

}  // namespace concord
