// concord::capped_attention: attention with soft-capped scores, cap tanh(scale q k^T / cap), capped before the mask
// (Gemma 2). core/ops/attention/attention.h calls it if its options have a cap. No vendor's attention supports it, so
// on every device it is composed of libtorch's operators, in blocks of queries: memory grows with the length of a
// sequence, not with its square. A backend may register a kernel.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <tuple>

namespace concord::ops {

// Arguments and results are those of concord::attention; |cap| > 0.
std::tuple<at::Tensor, at::Tensor> capped_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                    at::IntArrayRef cu_seqlens, bool causal, int64_t window,
                                                    double scale, double cap);
std::tuple<at::Tensor, at::Tensor, at::Tensor> capped_attention_backward(const at::Tensor& grad, const at::Tensor& q,
                                                                         const at::Tensor& k, const at::Tensor& v,
                                                                         const at::Tensor& out, const at::Tensor& lse,
                                                                         at::IntArrayRef cu_seqlens, bool causal,
                                                                         int64_t window, double scale, double cap);

}  // namespace concord::ops
