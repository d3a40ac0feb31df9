// concord::linear: y = x weight^T + bias, with a derivative in two halves. The input's gradient is computed in
// backward, since the previous layer waits for it. The weight's is added directly to a buffer in fp32, with one GEMM
// and without a tensor of its own, and may be deferred (GradSink).
#pragma once

#include "core/ops/grad_sink.h"

namespace concord {

class Fp8Layer;

// |x| [..., in], |weight| [out, in], |bias| [out] or undefined, of one type and device. Without |sink| the weight's
// gradient goes to autograd as usual. With it autograd sees none, so that hooks on the weight do not run: sink->added
// does. A backward that is asked for some inputs' gradients only, and not for the weight's, adds nothing. With |fp8|,
// which has to outlive backward, the GEMMs are of 8-bit floats (fp8_layer.h). Throws ConfigError, with the sizes, if
// they do not fit.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {},
                  const GradSink* sink = nullptr, Fp8Layer* fp8 = nullptr);

// The halves separately, for layers that put communication between them.
at::Tensor linear_input_grad(const at::Tensor& grad, const at::Tensor& weight, Fp8Layer* fp8 = nullptr);
at::Tensor linear_weight_grad(const at::Tensor& grad, const at::Tensor& x, Fp8Layer* fp8 = nullptr);
at::Tensor linear_bias_grad(const at::Tensor& grad);
// main += grad^T x, over all rows.
void add_linear_weight_grad(const at::Tensor& main, const at::Tensor& grad, const at::Tensor& x,
                            Fp8Layer* fp8 = nullptr);
// The same where |sink| wants it: now or later, and then sink.added.
void add_linear_weight_grad(const GradSink& sink, const at::Tensor& grad, const at::Tensor& x, Fp8Layer* fp8 = nullptr);

}  // namespace concord
