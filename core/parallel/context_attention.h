// Causal attention over sequences whose tokens are spread over a context-parallel group
// (core/parallel/context_slices.h).
//
//   ring       keys and values travel from rank to rank, each exchange beside the attention on what came before; in
//              backward their gradients travel along and end at their owner. A rank never holds more than two ranks'
//              keys. Blocks are put together by their log sum exp.
//   gathered   keys and values of all ranks are gathered first: fewer, larger messages, and memory for all keys.
//              Takes a sliding window too.
//
// Both are exact, forward and backward; positions, and so rope, are up to the caller. Errors: ConfigError with the
// sizes. |group| has to live until backward is done.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/mesh/process_group.h"
#include "core/ops/attention/attention.h"

namespace concord {

// This rank's part of |x| along |dim|, contiguous. |lengths| as in context_slices. With a derivative, which is this
// rank's part put back among zeros; if all ranks share the whole, their gradients must be summed.
at::Tensor take_context_slices(const at::Tensor& x, std::span<const int64_t> lengths, int64_t dim,
                               const ProcessGroup& group);

// |q| [B, S / cp, heads, n], |k|, |v| [B, S / cp, kv_heads, n]: this rank's tokens. With |cu_seqlens|, the boundaries
// of packed sequences in the whole [0, ..., T]: q [T / cp, heads, n] and so on. Returns like |q|. options.causal has to
// be true; ring does not support a window.
at::Tensor ring_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, ProcessGroup& group,
                          const AttentionOptions& options = {}, std::span<const int64_t> cu_seqlens = {});
at::Tensor gathered_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, ProcessGroup& group,
                              const AttentionOptions& options = {}, std::span<const int64_t> cu_seqlens = {});

// The lengths of the whole's sequences, for tokens in |dim| of this rank's |q|. Throws ConfigError for invalid
// boundaries and for tokens that do not fit them.
std::vector<int64_t> whole_lengths(const at::Tensor& q, const ProcessGroup& group, std::span<const int64_t> cu_seqlens);

}  // namespace concord
