#include "core/ops/moe/moe_permute.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include "core/base/config_error.h"
#include "core/ops/testing/samples.h"

namespace concord::ops::testing::of_moe_permute {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct Drawn {
  Drawn(Draw& draw, c10::ScalarType type)
      : tokens(draw.size()), k(draw.between(1, 4)), h(draw.size()), count(k + draw.between(0, 6)) {
    std::vector<at::Tensor> choices;  // distinct: a random start and a stride
    const at::Tensor first = draw.integers({tokens}, 0, count - 1);
    for (int64_t j = 0; j < k; ++j) choices.push_back((first + j).remainder(count));
    experts = at::stack(choices, 1);
    order = order_by_expert(experts, count);
    x = draw.normal({tokens, h}, type);
    rows = draw.normal({tokens * k, h}, type);
    weights = draw.normal({tokens, k}, draw.coin() || type == at::kDouble ? type : at::kFloat);
  }
  int64_t tokens, k, h, count;
  at::Tensor experts, x, rows, weights;
  ExpertOrder order;
};

const RegisterSamples kOrder("concord::moe_order", [](Draw& draw, c10::ScalarType type) {
  const Drawn d(draw, type);
  return Sample{{d.experts, d.count}, 0};
});
const RegisterSamples kPermute("concord::moe_permute", [](Draw& draw, c10::ScalarType type) {
  const Drawn d(draw, type);
  return Sample{{d.x, d.order.order, d.order.inverse}, 0};
});
const RegisterSamples kCombine("concord::moe_combine", [](Draw& draw, c10::ScalarType type) {
  const Drawn d(draw, type);
  const bool weighted = draw.coin();
  const c10::IValue weights = weighted ? c10::IValue(d.weights) : c10::IValue();
  const double size = static_cast<double>(d.k) * largest(d.rows) * (weighted ? largest(d.weights) : 1);
  return Sample{{d.rows, weights, d.order.order, d.order.inverse, d.k}, 4, {size}};
});
const RegisterSamples kBackward("concord::moe_combine_backward", [](Draw& draw, c10::ScalarType type) {
  const Drawn d(draw, type);
  const double dot = static_cast<double>(d.h) * largest(d.x) * largest(d.rows);
  return Sample{{d.x, d.rows, d.weights, d.order.order, d.order.inverse}, 4, {largest(d.x) * largest(d.weights), dot}};
});

// Checks the operators against the definition, per expert and token, in fp64.
void expect_as_loops(const Drawn& d) {
  const at::Tensor ends = d.order.ends, permuted = moe_permute(d.x, d.order);
  at::Tensor sums = at::zeros({d.tokens, d.h}, at::kDouble);
  int64_t place = 0;
  for (int64_t e = 0; e < d.count; ++e) {
    for (int64_t t = 0; t < d.tokens; ++t) {
      for (int64_t j = 0; j < d.k; ++j) {
        if (d.experts[t][j].item<int64_t>() != e) continue;
        EXPECT_TRUE(at::equal(permuted[place], d.x[t]));
        sums[t] += d.rows[place++] * d.weights[t][j];
      }
    }
    ASSERT_EQ(ends[e].item<int64_t>(), place);
  }
  EXPECT_LE(largest(moe_combine(d.rows, d.weights, d.order) - sums), 1e-13);
}

TEST(MoePermute, PutsTokensInTheOrderOfExpertsAndAddsThemUpAgain) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    expect_as_loops(Drawn(draw, at::kDouble));
  }
}

TEST(MoePermute, KeepsTheOrderOfTokensAndLeavesExpertsWithoutAny) {
  const ExpertOrder order = order_by_expert(at::full({4, 1}, 2, at::kLong), 5);
  EXPECT_TRUE(at::equal(order.ends, at::tensor({0, 0, 4, 4, 4}, at::kLong)));
  EXPECT_TRUE(at::equal(order.order, at::tensor({0, 1, 2, 3}, at::kLong)));
}

TEST(MoePermute, NoTokensAreNoRows) {
  const ExpertOrder order = order_by_expert(at::zeros({0, 2}, at::kLong), 3);
  EXPECT_TRUE(at::equal(order.ends, at::zeros({3}, at::kLong)));
  const at::Tensor rows = moe_permute(at::ones({0, 5}), order);
  EXPECT_EQ(rows.size(0), 0);
  EXPECT_EQ(moe_combine(rows, at::ones({0, 2}), order).size(0), 0);
}

TEST(MoePermute, RefusesSizesThatDoNotFitAndNamesThem) {
  const ExpertOrder order = order_by_expert(at::zeros({3, 2}, at::kLong), 3);
  EXPECT_THAT([&] { moe_permute(at::ones({4, 5}), order); },
              ThrowsMessage<ConfigError>(HasSubstr("x is Float [4, 5]")));
  EXPECT_THAT([&] { moe_combine(at::ones({6, 5}), at::ones({3, 1}), order); },
              ThrowsMessage<ConfigError>(HasSubstr("rows is Float [6, 5], weights Float [3, 1]")));
}

}  // namespace
}  // namespace concord::ops::testing::of_moe_permute
