#include "core/ops/moe/moe_capacity.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>

#include "core/ops/derivative.h"
#include "core/ops/moe/moe_permute.h"

namespace concord {

using at::Tensor;

namespace {

Tensor begins_of(const Tensor& ends) { return at::constant_pad_nd(ends.narrow(0, 0, ends.size(0) - 1), {1, 0}, 0); }

// Returns x[from], with 0 if |from| is beyond the end of |x|.
Tensor taken(const Tensor& x, const Tensor& from) {
  const int64_t count = x.size(0);
  if (count == 0) return x.new_zeros({from.size(0), x.size(1)});
  return x.index_select(0, from.clamp_max(count - 1)).masked_fill_(from.ge(count).unsqueeze(1), 0);
}

// The backward is a |taken| too, since no two slots have the same row: no sums, and thus deterministic.
Tensor moved(const char* name, const Tensor& x, const Tensor& from, const Tensor& back) {
  const auto run = [&] { return ops::Forward{taken(x, from), {back}}; };
  return ops::differentiable(name, {x}, run,
                             [](const ops::Backward& b) { return ops::Tensors{taken(b.grad, b.saved[0])}; });
}

}  // namespace

// Uses Megatron's order of operations, so that the same factor rounds to the same number.
int64_t expert_capacity(int64_t tokens, int64_t top_k, int64_t experts, double factor) {
  const double share = static_cast<double>(tokens * top_k) / static_cast<double>(experts);
  return std::min(tokens, static_cast<int64_t>(std::ceil(share * factor)));
}

// Sorts choices by priority, then stably by expert: the index of a choice among those of its expert decides whether it
// is within capacity.
Tensor within_capacity(const Routing& routing, int64_t experts, int64_t capacity, DropPolicy policy) {
  const at::NoGradGuard no_grad;
  Tensor chosen = routing.experts.reshape({-1}), by_weight;
  if (policy == DropPolicy::probs) {
    by_weight = std::get<1>(routing.weights.reshape({-1}).sort(/*stable=*/true, /*dim=*/0, /*descending=*/true));
    chosen = chosen.index_select(0, by_weight);
  }
  const ExpertOrder order = order_by_expert(chosen.unsqueeze(1), experts);
  Tensor kept = (order.inverse - begins_of(order.ends).index_select(0, chosen)).lt(capacity);
  if (by_weight.defined()) kept = at::empty_like(kept).index_copy_(0, by_weight, kept);
  return kept.view(routing.experts.sizes());
}

// Empty slots all have the index |rows|: which of them is written there does not matter, since it is cut off.
CapacityPlaces capacity_places(const Tensor& ends, int64_t rows, int64_t capacity) {
  const at::NoGradGuard no_grad;
  const Tensor row_ec = begins_of(ends).unsqueeze(1) + at::arange(capacity, ends.options());
  const Tensor row = at::where(row_ec.lt(ends.unsqueeze(1)), row_ec, rows).flatten();
  const Tensor place = at::full({rows + 1}, row.size(0), ends.options());
  place.index_copy_(0, row, at::arange(row.size(0), ends.options()));
  return {row, place.narrow(0, 0, rows)};
}

Tensor pad_to_capacity(const Tensor& rows, const CapacityPlaces& places) {
  return moved("pad_to_capacity", rows, places.row, places.place);
}

Tensor unpad_from_capacity(const Tensor& padded, const CapacityPlaces& places) {
  return moved("unpad_from_capacity", padded, places.place, places.row);
}

}  // namespace concord
