// concord::attention: softmax(scale q k^T) v with the features of a decoder: causal masks, grouped heads, a sliding
// window, packed sequences. Exact. On the host it is libtorch's flash attention, which never allocates an S x S matrix;
// on a device it is the reference, which does, unless the device's backend registers a kernel.
//
// Query head h uses key head h / (heads / kv_heads). The last query and the last key are the same token: query i sees
// keys j <= i + (keys - queries), so that a part of the queries can attend to all preceding keys. A window w keeps the
// last w of those keys, including the query's own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>

#include "core/ops/attention/attention_dropout.h"

namespace concord {

struct AttentionOptions {
  bool causal = true;
  int64_t window = 0;                // 0: none; only with causal
  std::optional<double> scale = {};  // nullopt: 1 / sqrt(head size)
  double cap = 0;  // scores become cap tanh(score / cap) (core/ops/attention/capped_attention.h); 0: disabled
  at::Tensor sinks =
      {};  // [heads]: scores of an additional key per head with value 0 (core/ops/attention/attention_sinks.h)
  AttentionDropout dropout =
      {};  // not supported by kernels: composed of operators (core/ops/attention/composed_attention.h)
};

// |q| [B, S, heads, n], |k|, |v| [B, S', kv_heads, n] -> [B, S, heads, n]; S <= S' if causal. With |cu_seqlens| the
// sequences are packed: q [T, heads, n], k, v [T, kv_heads, n]; sequence i starts at token cu_seqlens[i] and does not
// attend to the others. Empty sequences are allowed. Throws ConfigError, with the sizes, for heads that do not divide,
// sizes that do not match, and a cu_seqlens that does not start at 0, decreases, or does not end at T.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const AttentionOptions& options = {}, std::span<const int64_t> cu_seqlens = {});

// The forward and backward pass without autograd, for callers that merge the results of several calls, such as ring
// attention. Always [B, S, heads, n]. |lse| [B, heads, S], fp32 (fp64 for Double): log-sum-exp of each query's scores.
// backward is linear in |grad| and takes |out| and |lse| of the whole, even if k and v are only a part of the keys.
// Ignores sinks, which the caller applies to the whole.
struct AttentionForward;
struct AttentionBackward;
AttentionForward attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   const AttentionOptions& options, std::span<const int64_t> cu_seqlens = {});
AttentionBackward attention_backward(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k,
                                     const at::Tensor& v, const AttentionForward& whole,
                                     const AttentionOptions& options, std::span<const int64_t> cu_seqlens = {});

// Throws ConfigError for boundaries that do not start at 0, decrease, or do not end at |tokens|.
void check_cu_seqlens(const char* op, std::span<const int64_t> cu_seqlens, int64_t tokens);

}  // namespace concord
