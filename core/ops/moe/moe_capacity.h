// The capacity of experts: each takes at most so many of a router's tokens, the others go without it. Deterministic;
// composed of libtorch's operators, without waiting for the device.
#pragma once

#include <cstdint>

#include "core/ops/moe/moe_router.h"

namespace concord {

// Which tokens an expert that is chosen by too many keeps: those with the largest weights (of equal ones the earlier),
// or the first ones. Megatron's moe_token_drop_policy.
enum class DropPolicy { probs, position };

// ceil(tokens * top_k / experts * factor), Megatron's; at most |tokens|, since no token chooses an expert twice.
int64_t expert_capacity(int64_t tokens, int64_t top_k, int64_t experts, double factor);

// Of |routing| over |experts| experts, its tokens in their order: bool, like routing.experts, true for the choices that
// are within |capacity|.
at::Tensor within_capacity(const Routing& routing, int64_t experts, int64_t capacity, DropPolicy policy);

// Rows in the order of experts, and places for them: |capacity| for each expert, of which it fills the first ones.
struct CapacityPlaces {
  at::Tensor row;    // int64 [experts * capacity]: the row in a place; the number of rows if it is empty
  at::Tensor place;  // int64 [rows]: the place of a row; the number of places if it has none
};

// |ends| int64 [experts]: the rows of expert e, at most |capacity|, are [ends[e - 1], ends[e]) of |rows|; those after
// the last end have no expert.
CapacityPlaces capacity_places(const at::Tensor& ends, int64_t rows, int64_t capacity);

// [rows, h] -> [experts * capacity, h], where empty places are 0; and back, where rows without a place are 0.
at::Tensor pad_to_capacity(const at::Tensor& rows, const CapacityPlaces& places);
at::Tensor unpad_from_capacity(const at::Tensor& padded, const CapacityPlaces& places);

}  // namespace concord
