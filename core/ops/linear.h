// concord::linear: y = x weight^T + bias, with a derivative in two halves. The input gradient is computed in backward,
// since the previous layer waits for it. The weight gradient is added directly to an fp32 buffer, with one GEMM and
// without a temporary tensor, and may be deferred (GradSink).
#pragma once

#include "core/ops/grad_sink.h"

namespace concord {

class Fp8Layer;

// |x| [..., in], |weight| [out, in], |bias| [out] or undefined, of one type and device. Without |sink| the weight
// gradient goes to autograd as usual. With it autograd gets none, so that sink->added runs instead of hooks on the
// weight. A backward for some inputs only, without the weight, adds nothing. With |fp8|, which must outlive backward,
// the GEMMs are FP8 (fp8_layer.h). Throws ConfigError, with the sizes, if they do not match.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {},
                  const GradSink* sink = nullptr, Fp8Layer* fp8 = nullptr);

// The two halves separately, for layers that overlap communication with them.
at::Tensor linear_input_grad(const at::Tensor& grad, const at::Tensor& weight, Fp8Layer* fp8 = nullptr);
at::Tensor linear_weight_grad(const at::Tensor& grad, const at::Tensor& x, Fp8Layer* fp8 = nullptr);
at::Tensor linear_bias_grad(const at::Tensor& grad);
// main += grad^T x, over all rows.
void add_linear_weight_grad(const at::Tensor& main, const at::Tensor& grad, const at::Tensor& x,
                            Fp8Layer* fp8 = nullptr);
// Like add_linear_weight_grad() above, to |sink|: immediately or deferred, followed by sink.added.
void add_linear_weight_grad(const GradSink& sink, const at::Tensor& grad, const at::Tensor& x, Fp8Layer* fp8 = nullptr);

}  // namespace concord
