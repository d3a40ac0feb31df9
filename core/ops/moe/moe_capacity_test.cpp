#include "core/ops/moe/moe_capacity.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include "core/ops/testing/samples.h"

namespace concord::ops::testing::of_moe_capacity {
namespace {

using at::Tensor;

// Megatron's apply_router_token_dropping: for each expert the largest entries in its column of the dense [tokens,
// experts] weights; by position, its topk of zeros and ones selects the first tokens.
Tensor megatron_keeps(const Routing& routing, int64_t experts, int64_t capacity, DropPolicy policy) {
  const int64_t tokens = routing.experts.size(0);
  Tensor dense = at::zeros({tokens, experts}, routing.weights.options());
  if (policy == DropPolicy::probs) {
    dense.scatter_(1, routing.experts, routing.weights);
  } else {
    for (int64_t t = 0; t < tokens; ++t) dense[t].index_fill_(0, routing.experts[t], static_cast<double>(tokens - t));
  }
  const Tensor best = std::get<1>(at::topk(dense, capacity, 0, /*largest=*/true, /*sorted=*/false));
  return at::zeros({tokens, experts}, at::kFloat).scatter_(0, best, 1).gather(1, routing.experts).to(at::kBool);
}

// Logits that prefer the first experts, so that these exceed their capacity and the last ones are empty; no two weights
// are equal.
TEST(ExpertCapacity, KeepsTheChoicesThatMegatronKeeps) {
  Draw draw(7);
  int64_t dropped = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const int64_t tokens = 1 + trial % 23, experts = 2 + trial % 7, k = 1 + trial % 2;
    const Tensor slope = at::arange(experts, at::kDouble).mul(-0.2 * (trial % 11));
    const Routing routing = route_tokens(draw.normal({tokens, experts}, at::kDouble) + slope, {.top_k = k});
    const double factor = 0.25 * (1 + trial % 6);
    const int64_t capacity = expert_capacity(tokens, k, experts, factor);
    for (const DropPolicy policy : {DropPolicy::probs, DropPolicy::position}) {
      const Tensor kept = within_capacity(routing, experts, capacity, policy);
      EXPECT_TRUE(at::equal(kept, megatron_keeps(routing, experts, capacity, policy))) << trial;
      dropped += kept.logical_not().sum().item<int64_t>();
    }
  }
  EXPECT_GT(dropped, 500);
}

TEST(ExpertCapacity, IsMegatronsNumber) {
  EXPECT_EQ(expert_capacity(10, 2, 8, 1.0), 3);  // ceil(2.5)
  EXPECT_EQ(expert_capacity(16, 2, 8, 1.0), 4);
  EXPECT_EQ(expert_capacity(16, 2, 8, 1.25), 5);
  EXPECT_EQ(expert_capacity(16, 2, 8, 100), 16);
}

// All tokens at one expert with equal weights: the first ones are kept.
TEST(ExpertCapacity, OfEqualWeightsKeepsTheEarlierTokens) {
  const Routing routing{at::ones({5, 1}, at::kFloat), at::zeros({5, 1}, at::kLong)};
  for (const DropPolicy policy : {DropPolicy::probs, DropPolicy::position}) {
    EXPECT_TRUE(at::equal(within_capacity(routing, 3, 2, policy),
                          at::tensor({1, 1, 0, 0, 0}, at::kLong).to(at::kBool).unsqueeze(1)));
  }
}

// Three experts with capacity for three rows: one is full, one is empty, one has some; and there are rows without an
// expert.
TEST(ExpertCapacity, PadsRowsOfExpertsToIt) {
  const Tensor rows = at::arange(1.0, 15.0, at::kDouble).view({7, 2}).requires_grad_(true);
  const CapacityPlaces places = capacity_places(at::tensor({3, 3, 5}, at::kLong), 7, 3);
  const Tensor padded = pad_to_capacity(rows, places);
  EXPECT_TRUE(at::equal(
      padded, at::tensor({1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 7.0, 8.0, 9.0, 10.0, 0.0, 0.0},
                         at::kDouble)
                  .view({9, 2})));
  const Tensor back = unpad_from_capacity(padded, places);
  EXPECT_TRUE(at::equal(back.narrow(0, 0, 5), rows.narrow(0, 0, 5)));
  EXPECT_EQ(back.narrow(0, 5, 2).abs().sum().item<double>(), 0);
  // The gradient of a row with a slot is the sum of those of its slot and of the returned row.
  const Tensor on_places = at::arange(1.0, 19.0, at::kDouble).view({9, 2}), on_rows = rows.detach().mul(100);
  ((padded * on_places).sum() + (back * on_rows).sum()).backward();
  const Tensor wanted = at::tensor(
      {101.0, 202.0, 303.0, 404.0, 505.0, 606.0, 713.0, 814.0, 915.0, 1016.0, 0.0, 0.0, 0.0, 0.0}, at::kDouble);
  EXPECT_TRUE(at::equal(rows.grad(), wanted.view({7, 2})));
}

}  // namespace
}  // namespace concord::ops::testing::of_moe_capacity
