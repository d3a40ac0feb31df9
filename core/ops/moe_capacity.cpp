#include "core/ops/moe_capacity.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sort.h>

#include <algorithm>
#include <cmath>

#include "core/ops/moe_permute.h"

namespace concord {

using at::Tensor;

// In Megatron's order of operations, so that the same factor rounds to the same number.
int64_t expert_capacity(int64_t tokens, int64_t top_k, int64_t experts, double factor) {
  const double share = static_cast<double>(tokens * top_k) / static_cast<double>(experts);
  return std::min(tokens, static_cast<int64_t>(std::ceil(share * factor)));
}

// Choices in the order in which they are kept, then stably by expert: a choice's place among those of its expert says
// whether there is room for it.
Tensor within_capacity(const Routing& routing, int64_t experts, int64_t capacity, DropPolicy policy) {
  const at::NoGradGuard no_grad;
  Tensor chosen = routing.experts.reshape({-1}), by_weight;
  if (policy == DropPolicy::probs) {
    by_weight = std::get<1>(routing.weights.reshape({-1}).sort(/*stable=*/true, /*dim=*/0, /*descending=*/true));
    chosen = chosen.index_select(0, by_weight);
  }
  const ExpertOrder order = order_by_expert(chosen.unsqueeze(1), experts);
  const Tensor begins = at::constant_pad_nd(order.ends.narrow(0, 0, experts - 1), {1, 0}, 0);
  Tensor kept = (order.inverse - begins.index_select(0, chosen)).lt(capacity);
  if (by_weight.defined()) kept = at::empty_like(kept).index_copy_(0, by_weight, kept);
  return kept.view(routing.experts.sizes());
}

}  // namespace concord
