// concord::moe_permute, concord::moe_combine: sort tokens by the experts they are sent to, and sum the expert outputs
// per token. Deterministic: the sort is stable, and sums are in the order of a token's choices, in fp32 (fp64 for
// Double), rounded once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace concord {

// A row is one (token, choice): there are tokens * k of them. All int64, on the device of the choices.
struct ExpertOrder {
  at::Tensor order;    // [rows]: index of the row at position i; rows are ordered by token
  at::Tensor inverse;  // [rows]: position of row i
  at::Tensor ends;     // [experts]: positions of expert e are [ends[e - 1], ends[e])
};

// |experts| int64 [tokens, k]: the experts of each token, less than |count|. Rows of an expert stay in the order of
// tokens.
ExpertOrder order_by_expert(const at::Tensor& experts, int64_t count);

// |x| [tokens, h] -> [tokens * k, h]: a copy of its token for each row, sorted by expert.
at::Tensor moe_permute(const at::Tensor& x, const ExpertOrder& order);

// |rows| [tokens * k, h] sorted by expert, |weights| [tokens, k], of any floating type -> [tokens, h], in the type of
// |rows|: the weighted sum of the rows of each token.
at::Tensor moe_combine(const at::Tensor& rows, const at::Tensor& weights, const ExpertOrder& order);

}  // namespace concord
