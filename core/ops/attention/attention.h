// concord::attention: softmax(scale q k^T) v with what a decoder needs: causal, grouped heads, a sliding window, packed
// sequences. Exact. On the host it is libtorch's flash attention, and there is never an S x S matrix; on a device it is
// the reference, which has one, until the device's backend registers a kernel.
//
// Query head h uses key head h / (heads / kv_heads). The last query and the last key are the same token: query i sees
// keys j <= i + (keys - queries), so that a part of the queries can meet all the keys before them. A window w leaves
// the last w of those keys, itself among them.
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
  std::optional<double> scale = {};  // 1 / sqrt(head size) unless given
  double cap = 0;  // scores are cap tanh(score / cap) (core/ops/attention/capped_attention.h); 0: as they are
  at::Tensor sinks =
      {};  // [heads]: the scores of one more key per head, of value 0 (core/ops/attention/attention_sinks.h)
  AttentionDropout dropout = {};  // no kernel has it: composed of operators (core/ops/attention/composed_attention.h)
};

// |q| [B, S, heads, n], |k|, |v| [B, S', kv_heads, n] -> [B, S, heads, n]; S <= S' where causal. With |cu_seqlens| the
// sequences are packed: q [T, heads, n], k, v [T, kv_heads, n], sequence i begins at token cu_seqlens[i] and
// sees nothing of the others. Empty sequences are allowed.
// Throws ConfigError, with the sizes, for heads that do not divide, sizes that do not fit, and a cu_seqlens that does
// not start at 0, decreases, or does not end at T.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const AttentionOptions& options = {}, std::span<const int64_t> cu_seqlens = {});

// The two halves without autograd, for those who put results of several calls together, as ring attention does. Always
// [B, S, heads, n]. |lse| [B, heads, S], fp32 (fp64 for Double): log sum exp of each query's scores. backward is linear
// in |grad| and takes |out| and |lse| of the whole, even if k and v are only a part of the keys. Sinks are ignored:
// they are applied by whoever has the whole.
struct AttentionForward;
struct AttentionBackward;
AttentionForward attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   const AttentionOptions& options, std::span<const int64_t> cu_seqlens = {});
AttentionBackward attention_backward(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k,
                                     const at::Tensor& v, const AttentionForward& whole,
                                     const AttentionOptions& options, std::span<const int64_t> cu_seqlens = {});

// Refuses boundaries that do not start at 0, decrease, or do not end at |tokens|.
void check_cu_seqlens(const char* op, std::span<const int64_t> cu_seqlens, int64_t tokens);

}  // namespace concord
