// Sequences whose tokens are spread over a context-parallel group (core/parallel/context_slices.h), for layers that
// need all tokens of a sequence, but only some of its heads: ranks exchange tokens for heads, compute, and exchange
// back, as DeepSpeed-Ulysses does. Two all-to-alls, of 1 / cp of the tensor each; exact, with derivatives. A group of
// one costs nothing. Errors: ConfigError with the sizes. |lengths| are those of context_slices.
//
// Example, given const at::Tensor& x_sbkc, ProcessGroup& cp, const std::vector<int64_t>& lengths:
//   const at::Tensor heads = tokens_of_own_heads(x_sbkc, cp, lengths, 0, 2);  // all tokens in their order
//   const at::Tensor back = heads_of_own_tokens(heads, cp, lengths, 0, 2);    // x_sbkc
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "core/mesh/process_group.h"

namespace concord {

// This rank's tokens along |tokens|, of all heads along |heads| -> the tokens of all ranks, in their order, of the r-th
// part of the heads on rank r.
at::Tensor tokens_of_own_heads(const at::Tensor& x, ProcessGroup& group, std::span<const int64_t> lengths,
                               int64_t tokens, int64_t heads);
// The way back.
at::Tensor heads_of_own_tokens(const at::Tensor& x, ProcessGroup& group, std::span<const int64_t> lengths,
                               int64_t tokens, int64_t heads);

// Tokens of all ranks, rank by rank along |dim| -> in their order. Without an index, which would be copied to the
// device.
at::Tensor in_order_of_tokens(const at::Tensor& x, int64_t ranks, std::span<const int64_t> lengths, int64_t dim);

}  // namespace concord
