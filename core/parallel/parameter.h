// A parameter of a model on this rank, with everything that others need to know about it: initialisation and HF files
// (spec), gradient reduction and the optimizer (where its gradient goes, who holds the same elements).
//
// Owned by the model chunk it belongs to, which outlives everybody that points to it; its address does not change.
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

// Rows of another parameter on this rank, |of|; none where that is empty.
struct ParameterRows {
  std::string of = {};
  int64_t first = 0;
};

struct Parameter {
  ShardSpec spec;
  WeightInit init;
  // A leaf that requires a gradient, contiguous, of local_shape(spec, place), on the job's device. Data parallelism may
  // move it into a flat buffer (set_data); what autograd knows about it stays.
  at::Tensor value;
  // Where its gradient goes once sink.main is set; until then into value.grad(), as autograd has it. Operators that
  // take a sink add to it themselves; what still reaches value.grad() is moved by data parallelism.
  GradSink sink = {};
  // How many gradients a micro-batch adds: two for an embedding that is the output layer too.
  int64_t uses = 1;
  // Each of these reaches value.grad() in parts, whose number is not known; sinks are told once all are there.
  bool comes_in_parts = false;
  // Its gradient is a part of the sum over the tensor-parallel group: each rank has seen its own tokens only (norms and
  // biases under sequence parallelism).
  bool partial_over_tp = false;
  // Is on the first and on the last stage of the pipeline: gradients are summed over the embedding group, and the
  // norm counts it on the first stage.
  bool shared_embedding = false;
  bool expert = false;  // reduced over edp instead of dp_cp
  // Not trained by gradients, fp32 in a model of any type: data parallelism and the optimizer do not know it.
  bool buffer = false;
  // Not trained: no gradient, no part of data parallelism, the optimizer or a checkpoint. Its value then requires no
  // gradient.
  bool frozen = false;
  bool linear = false;  // the weight of a linear layer that quantization_bit is for
  // Its values where they are held in 4 bits; |value| then is one element, NaN, expanded to the shape.
  std::shared_ptr<const Nf4Weight> nf4 = {};
  bool adapter = false;          // of a low-rank pair, not of the model's own weights
  ParameterRows row_norms = {};  // whose norms it begins as, instead of |init|
  // Called before the value is read if it may still be in flight: data parallelism gathers it in parallel with forward.
  std::function<void()> before_use = {};

  // The value for readers: the operators of forward, files.
  const at::Tensor& used() const {
    if (before_use) before_use();
    return value;
  }
  // The same, also of what is held in 4 bits, in memory of its own then.
  at::Tensor values() const { return nf4 ? nf4->dequantised(value.scalar_type()) : used(); }
  // For the operators: null while autograd keeps the gradient.
  const GradSink* grad_sink() const { return sink.main.defined() ? &sink : nullptr; }
};

}  // namespace concord
