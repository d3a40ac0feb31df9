// Exchanges tokens for heads, for layers that need all tokens of a sequence but only some of its heads, when the tokens
// are sharded over a context-parallel group (core/parallel/context_slices.h): two all-to-alls of 1 / cp of the tensor
// each, as in DeepSpeed-Ulysses. Exact and differentiable; free in a group of one. Throws ConfigError with the sizes.
// |lengths| are those of context_slices.
//
// Example, given const at::Tensor& x_sbkc, ProcessGroup& cp, const std::vector<int64_t>& lengths:
//   const at::Tensor heads = tokens_of_own_heads(x_sbkc, cp, lengths, 0, 2);  // all tokens in sequence order
//   const at::Tensor back = heads_of_own_tokens(heads, cp, lengths, 0, 2);    // x_sbkc
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "core/mesh/process_group.h"

namespace concord {

// All-to-all: this rank's tokens (dim |tokens|) of all heads (dim |heads|) -> the tokens of all ranks in sequence
// order, of the r-th part of the heads on rank r.
at::Tensor tokens_of_own_heads(const at::Tensor& x, ProcessGroup& group, std::span<const int64_t> lengths,
                               int64_t tokens, int64_t heads);
// Inverse of tokens_of_own_heads().
at::Tensor heads_of_own_tokens(const at::Tensor& x, ProcessGroup& group, std::span<const int64_t> lengths,
                               int64_t tokens, int64_t heads);

// Reorders the tokens of all ranks, concatenated by rank along |dim|, to sequence order. Uses no index tensor, which
// would have to be copied to the device.
at::Tensor in_order_of_tokens(const at::Tensor& x, int64_t ranks, std::span<const int64_t> lengths, int64_t dim);

}  // namespace concord
