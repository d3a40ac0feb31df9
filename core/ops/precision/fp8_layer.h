// A linear layer whose GEMMs take 8-bit floats: how its three operands are scaled, and its weight as it is multiplied
// with. Passed to linear() and its halves (linear.h), which then compute
//
//   y = x W^T in e4m3; dx = dy W and dW += dy^T x with dy in the format of |grad|
//
// from 8-bit copies, with sums in 32 bits and results in the layer's type (dW in fp32). What autograd keeps is 8 bits.
// Threads: one at a time.
#pragma once

#include "core/ops/grad_sink.h"
#include "core/ops/precision/fp8.h"

namespace concord {

class Fp8Layer {
 public:
  Fp8Scaling input, weight, grad;

  // The weight in 8 bits, made once and kept until libtorch knows of a change or forget_weight() is called, which is
  // for those whose changes it does not see: an optimizer's kernel.
  Fp8Matrix weight_of(const at::Tensor& value);
  void forget_weight() { kept_ = {}; }
  // Whether inputs count in input.seen from now on: those of evaluation and generation do not.
  void count_inputs(bool count) { counts_inputs_ = count; }
  Fp8Scaling scaling_of_input() const;  // |input|, without |seen| where they do not

 private:
  Fp8Matrix kept_;
  const void* kept_of_ = nullptr;
  uint32_t kept_version_ = 0;
  bool counts_inputs_ = true;
};

// linear() with |fp8|, and its halves: the weight's goes into |sink| or, without one, is returned.
at::Tensor fp8_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const GradSink* sink,
                      Fp8Layer& layer);
at::Tensor fp8_input_grad(const at::Tensor& grad, const at::Tensor& weight, Fp8Layer& layer);
at::Tensor fp8_weight_grad(const GradSink* sink, const at::Tensor& grad, const at::Tensor& x, Fp8Layer& layer);

// What lies between the norm and the sum of an MLP, x -> down(swiglu(gate_up(x))), both layers in 8 bits and without
// biases: activations are written in 8 bits by the kernels that compute them. |x| [..., in], weights [2 n, in] and
// [out, n]. Sinks as in linear(); may be null. The layers have to outlive backward.
struct Fp8MlpHalf {
  at::Tensor weight;
  const GradSink* sink;
  Fp8Layer* layer;
};
at::Tensor fp8_mlp(const at::Tensor& x, const Fp8MlpHalf& gate_up, const Fp8MlpHalf& down);

}  // namespace concord
