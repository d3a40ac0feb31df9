// Expert capacity: each expert processes at most a fixed number of a router's tokens; the others are dropped.
// Deterministic; composed of libtorch's operators, without waiting for the device.
#pragma once

#include <cstdint>

#include "core/ops/moe/drop_policy.h"
#include "core/ops/moe/moe_router.h"

namespace concord {

// Returns ceil(tokens * top_k / experts * factor), like Megatron; at most |tokens|, since no token chooses an expert
// twice.
int64_t expert_capacity(int64_t tokens, int64_t top_k, int64_t experts, double factor);

// Returns a bool tensor like routing.experts, true for the choices within |capacity|. |routing| is over |experts|
// experts, with tokens in order.
at::Tensor within_capacity(const Routing& routing, int64_t experts, int64_t capacity, DropPolicy policy);

// Rows sorted by expert, and slots for them: |capacity| per expert, of which the first ones are filled.
struct CapacityPlaces {
  at::Tensor row;    // int64 [experts * capacity]: row in a slot; the number of rows if it is empty
  at::Tensor place;  // int64 [rows]: slot of a row; the number of slots if it has none
};

// |ends| int64 [experts]: the rows of expert e, at most |capacity|, are [ends[e - 1], ends[e]) of |rows|; rows after
// the last end have no expert.
CapacityPlaces capacity_places(const at::Tensor& ends, int64_t rows, int64_t capacity);

// [rows, h] -> [experts * capacity, h], with zeros in empty slots; and the inverse, with zeros for rows without a slot.
at::Tensor pad_to_capacity(const at::Tensor& rows, const CapacityPlaces& places);
at::Tensor unpad_from_capacity(const at::Tensor& padded, const CapacityPlaces& places);

}  // namespace concord
