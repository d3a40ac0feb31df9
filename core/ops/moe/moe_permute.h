// concord::moe_permute, concord::moe_combine: tokens put into the order of the experts they were sent to, and what
// the experts made of them put back and added up. Deterministic: the order is stable, and sums are taken in the order
// of a token's choices, in fp32 (fp64 for Double), rounded once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace concord {

// A row is one (token, choice): there are tokens * k of them. All int64, on the device of the choices.
struct ExpertOrder {
  at::Tensor order;    // [rows]: the row that is in place i, where rows are counted token by token
  at::Tensor inverse;  // [rows]: the place of row i
  at::Tensor ends;     // [experts]: places of expert e are [ends[e - 1], ends[e])
};

// |experts| int64 [tokens, k]: for each token the numbers of its experts, below |count|. Rows of an expert stay in
// the order of tokens.
ExpertOrder order_by_expert(const at::Tensor& experts, int64_t count);

// |x| [tokens, h] -> [tokens * k, h]: row by row the token that it is of, in the order of experts.
at::Tensor moe_permute(const at::Tensor& x, const ExpertOrder& order);

// |rows| [tokens * k, h] in the order of experts, |weights| [tokens, k], of any floating type -> [tokens, h], the type
// of |rows|: for each token the sum of its rows times their weights.
at::Tensor moe_combine(const at::Tensor& rows, const at::Tensor& weights, const ExpertOrder& order);

}  // namespace concord
