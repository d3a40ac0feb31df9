// Attention composed of libtorch's operators, for features that no vendor's kernel supports: soft-capped scores (Gemma
// 2), dropout of the probabilities. Computed in blocks of queries, so that memory grows with the length of a sequence,
// not with its square. core/ops/attention/attention.h calls it if its options require it. Threads: any.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <tuple>

#include "core/ops/attention/attention_dropout.h"

namespace concord::ops {

struct ComposedAttention {
  at::IntArrayRef cu_seqlens = {};
  bool causal = true;
  int64_t window = 0;
  double scale = 1;
  double cap = 0;  // 0: none
  AttentionDropout dropout = {};
};

// |q|, |k|, |v| and the results are those of attention_forward and attention_backward.
std::tuple<at::Tensor, at::Tensor> composed_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                      const ComposedAttention& how);
std::tuple<at::Tensor, at::Tensor, at::Tensor> composed_attention_backward(const at::Tensor& grad, const at::Tensor& q,
                                                                           const at::Tensor& k, const at::Tensor& v,
                                                                           const at::Tensor& out, const at::Tensor& lse,
                                                                           const ComposedAttention& how);

}  // namespace concord::ops
