// A parameter of a model on this rank, with its description for initialisation and HF files (spec), and for gradient
// reduction and the optimizer (destination of its gradient, replicas).
//
// Owned by its model chunk, which outlives all pointers to it; its address does not change.
// Threads: one at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

#include "core/ops/grad_sink.h"
#include "core/parallel/initialise_weights.h"
#include "core/parallel/nf4_weight.h"
#include "core/parallel/shard_spec.h"

namespace concord {

// Rows of another parameter on this rank, |of|; empty: none.
struct ParameterRows {
  std::string of = {};
  int64_t first = 0;
};

struct Parameter {
  ShardSpec spec;
  WeightInit init;
  // A leaf that requires a gradient, contiguous, of local_shape(spec, place), on the job's device. Data parallelism may
  // move it into a flat buffer (set_data), which does not affect autograd.
  at::Tensor value;
  // Destination of the gradient once sink.main is set; until then it is value.grad(), as usual in autograd. Operators
  // that take a sink add to it themselves; data parallelism moves gradients that still arrive in value.grad().
  GradSink sink = {};
  // Number of gradients that a micro-batch adds: two for an embedding that is also the output layer.
  int64_t uses = 1;
  // Each of these arrives in value.grad() in an unknown number of parts; sinks are notified after the last part.
  bool comes_in_parts = false;
  // The gradient is partial over the tensor-parallel group: each rank has processed only its own tokens (norms and
  // biases under sequence parallelism).
  bool partial_over_tp = false;
  // Shared by the first and the last stage of the pipeline: gradients are summed over the embedding group, and the
  // norm counts it on the first stage.
  bool shared_embedding = false;
  bool expert = false;  // reduced over edp instead of dp_cp
  // Not trained by gradients, fp32 in a model of any type: ignored by data parallelism and the optimizer.
  bool buffer = false;
  // Not trained: excluded from data parallelism, the optimizer and checkpoints. Its value requires no gradient.
  bool frozen = false;
  bool linear = false;  // weight of a linear layer, to which quantization_bit applies
  // The values if they are stored in NF4; |value| is then one NaN element, expanded to the shape.
  std::shared_ptr<const Nf4Weight> nf4 = {};
  bool adapter = false;          // part of a LoRA adapter, not of the base model
  ParameterRows row_norms = {};  // initialised to their norms instead of |init|
  // Called before the value is read if it may still be in flight: data parallelism gathers it in parallel with forward.
  std::function<void()> before_use = {};

  // Returns the value for readers: the operators of forward, files.
  const at::Tensor& used() const {
    if (before_use) before_use();
    return value;
  }
  // Like used(), but also dequantises NF4 values, into newly allocated memory.
  at::Tensor values() const { return nf4 ? nf4->dequantised(value.scalar_type()) : used(); }
  // Returns the sink for operators; null while autograd accumulates the gradient.
  const GradSink* grad_sink() const { return sink.main.defined() ? &sink : nullptr; }
};

}  // namespace concord
