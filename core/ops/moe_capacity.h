// The capacity of experts: each takes at most so many of a router's tokens, the others go without it. Deterministic;
// composed of libtorch's operators, without waiting for the device.
#pragma once

#include <cstdint>

#include "core/ops/moe_router.h"

namespace concord {

// Which tokens an expert that is chosen by too many keeps: those with the largest weights (of equal ones the earlier),
// or the first ones. Megatron's moe_token_drop_policy.
enum class DropPolicy { probs, position };

// ceil(tokens * top_k / experts * factor), Megatron's; at most |tokens|, since no token chooses an expert twice.
int64_t expert_capacity(int64_t tokens, int64_t top_k, int64_t experts, double factor);

// Of |routing| over |experts| experts, its tokens in their order: bool, like routing.experts, true for the choices that
// are within |capacity|.
at::Tensor within_capacity(const Routing& routing, int64_t experts, int64_t capacity, DropPolicy policy);

}  // namespace concord
