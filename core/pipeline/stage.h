// One stage of a pipeline on this rank, as seen by the executor: layers that compute one micro-batch at a time. A stage
// only computes; the executor (executor.h) keeps state between forward and backward and orders the transfers.
// model_stage.h makes a stage from a model chunk.
//
// Backward is autograd's, of the output with the gradient received from the next stage; the gradient of the input goes
// to the previous stage. For the kinds that split it (zb-h1, zb-v) the gradients of weights are deferred where their
// sinks can (GradSink::deferred): then backward computes only the gradient of the input, and those of the weights run
// later, micro-batch by micro-batch. Gradients without such a sink are computed with the input's.
//
// Threads: same as Executor. Calls come in the order of the schedule; each may throw, which ends the run.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <vector>

namespace concord {

class DeferredWgrads;

// Shape and type of a tensor that is sent between two stages.
struct ValueSpec {
  std::vector<int64_t> shape;
  at::ScalarType dtype = at::kFloat;
};

class Stage {
 public:
  virtual ~Stage() = default;

  // Returns the spec of the tensor that the previous stage sends for |microbatch|, for the receive buffer. Not called
  // on the first stage of the model, nor if shapes are exchanged (ExecutorOptions::variable_seq_lengths).
  virtual ValueSpec input_spec(int microbatch) = 0;

  // |input| is the previous stage's output, a leaf; undefined on the first stage. Returns the output for the next
  // stage; the last stage returns the scalar that is differentiated, the scaled loss of the micro-batch. Runs without
  // autograd in a schedule without backwards.
  virtual at::Tensor forward(int microbatch, const at::Tensor& input) = 0;

  // Sets where weight gradients that can be deferred go: to |later|, which the stage passes to the sinks of its
  // parameters; null: they are computed in backward. Called before the first forward of a run, and with null after the
  // run. Does not throw.
  virtual void defer_weight_grads(DeferredWgrads* later) = 0;

  // Called when all gradients of the run are complete (REDUCE_GRAD), for stages that start a reduction then. Data
  // parallelism does not need it: it counts gradients and reduces each bucket when it is full.
  virtual void reduce_gradients() {}
};

}  // namespace concord
