// Causal attention over sequences whose tokens are sharded over a context-parallel group
// (core/parallel/context_slices.h).
//
//   ring       keys and values are passed from rank to rank, each exchange in parallel with the attention on the
//              previous ones; in backward their gradients are passed along and end at their owner. A rank never holds
//              more than two ranks' keys. Blocks are merged by their log-sum-exp.
//   gathered   keys and values of all ranks are gathered first: fewer, larger messages, and memory for all keys.
//              Supports a sliding window too.
//   ulysses    tokens are exchanged for heads by all-to-all, each rank attends with the whole sequence for its own
//              heads, and the outputs are exchanged back (DeepSpeed-Ulysses, arXiv 2309.14509). One large kernel per
//              rank, with any mask; the number of query heads limits the number of ranks.
//
// All are exact, forward and backward. Positions, and thus rope, are up to the caller. Throws ConfigError with the
// sizes. |group| must live until backward is done.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/mesh/process_group.h"
#include "core/ops/attention/attention.h"

namespace concord {

// Returns this rank's part of |x| along |dim|, contiguous. |lengths| as in context_slices. The derivative scatters this
// rank's part into zeros; if all ranks share the whole, their gradients must be summed.
at::Tensor take_context_slices(const at::Tensor& x, std::span<const int64_t> lengths, int64_t dim,
                               const ProcessGroup& group);

// |q| [B, S / cp, heads, n], |k|, |v| [B, S / cp, kv_heads, n]: this rank's tokens. With |cu_seqlens|, the boundaries
// of packed sequences in the whole [0, ..., T]: q [T / cp, heads, n] etc. Returns a tensor like |q|. options.causal
// must be true; ring attention does not support a window.
at::Tensor ring_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, ProcessGroup& group,
                          const AttentionOptions& options = {}, std::span<const int64_t> cu_seqlens = {});
at::Tensor gathered_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, ProcessGroup& group,
                              const AttentionOptions& options = {}, std::span<const int64_t> cu_seqlens = {});
// The number of query heads must be a multiple of cp. If that of key heads is not, each is sent to all ranks whose
// queries use it.
at::Tensor ulysses_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, ProcessGroup& group,
                             const AttentionOptions& options = {}, std::span<const int64_t> cu_seqlens = {});
// Throws ConfigError unless |heads| query heads can be split over |tp| x |cp| ranks.
void check_ulysses_heads(int64_t heads, int64_t tp, int64_t cp);

// Returns the lengths of the whole sequences, for tokens in |dim| of this rank's |q|. Throws ConfigError for invalid
// boundaries and for tokens that do not match them.
std::vector<int64_t> whole_lengths(const at::Tensor& q, const ProcessGroup& group, std::span<const int64_t> cu_seqlens);

}  // namespace concord
