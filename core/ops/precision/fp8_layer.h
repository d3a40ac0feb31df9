// A linear layer with FP8 GEMMs: the scaling of its three operands, and its quantised weight. Passed to linear() and
// its halves (linear.h), which then compute
//
//   y = x W^T in e4m3; dx = dy W and dW += dy^T x with dy in the format of |grad|
//
// from FP8 copies, with fp32 accumulation and results in the layer's type (dW in fp32). Tensors saved for backward are
// FP8 too. Threads: one at a time.
#pragma once

#include "core/ops/grad_sink.h"
#include "core/ops/precision/fp8.h"

namespace concord {

class Fp8Layer {
 public:
  Fp8Scaling input, weight, grad;

  // Returns the FP8 weight, which is cached until libtorch detects a change or forget_weight() is called. Call the
  // latter after changes that libtorch does not track, such as an optimizer's kernel.
  Fp8Matrix weight_of(const at::Tensor& value);
  void forget_weight() { kept_ = {}; }
  // Sets whether later inputs update input.seen; those of evaluation and generation should not.
  void count_inputs(bool count) { counts_inputs_ = count; }
  Fp8Scaling scaling_of_input() const;  // |input|, without |seen| if inputs are not counted

 private:
  Fp8Matrix kept_;
  const void* kept_of_ = nullptr;
  uint32_t kept_version_ = 0;
  bool counts_inputs_ = true;
};

// linear() with FP8, and its halves: the weight gradient is added to |sink| or, if null, returned.
at::Tensor fp8_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const GradSink* sink,
                      Fp8Layer& layer);
at::Tensor fp8_input_grad(const at::Tensor& grad, const at::Tensor& weight, Fp8Layer& layer);
at::Tensor fp8_weight_grad(const GradSink* sink, const at::Tensor& grad, const at::Tensor& x, Fp8Layer& layer);

// An MLP between the norm and the residual sum, x -> down(swiglu(gate_up(x))), both layers in FP8 and without biases:
// the kernels that compute activations write them in FP8. |x| [..., in], weights [2 n, in] and [out, n]. Sinks as in
// linear(); may be null. The layers must outlive backward.
struct Fp8MlpHalf {
  at::Tensor weight;
  const GradSink* sink;
  Fp8Layer* layer;
};
at::Tensor fp8_mlp(const at::Tensor& x, const Fp8MlpHalf& gate_up, const Fp8MlpHalf& down);

}  // namespace concord
