#include "core/ops/moe/moe_router.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/config_error.h"
#include "core/ops/testing/samples.h"

namespace concord::ops::testing::of_moe_router {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(RouteTokens, OfEqualLogitsTheFirstExpertsAreChosen) {
  const at::Tensor some = at::tensor({1.0, 3.0, 1.0, 3.0, 1.0, 3.0});
  const at::Tensor none = at::full({6}, std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(at::equal(route_tokens(some, {.top_k = 4}).experts, at::tensor({1, 3, 5, 0}, at::kLong)));
  EXPECT_TRUE(at::equal(route_tokens(none, {.top_k = 2}).experts, at::tensor({0, 1}, at::kLong)));
}

// exp of 0, 1, 2, 3, and their sum.
const double kTerms[] = {1, std::exp(1.0), std::exp(2.0), std::exp(3.0)};
const double kSum = kTerms[0] + kTerms[1] + kTerms[2] + kTerms[3];

at::Tensor logits() { return at::tensor({2.0, 0.0, 3.0, 1.0}, at::kDouble).unsqueeze(0); }

void expect_weights(const Routing& routing, double first, double second) {
  EXPECT_TRUE(at::equal(routing.experts, at::tensor({2, 0}, at::kLong).unsqueeze(0)));
  EXPECT_NEAR(routing.weights[0][0].item<double>(), first, 1e-15);
  EXPECT_NEAR(routing.weights[0][1].item<double>(), second, 1e-15);
}

TEST(RouteTokens, SoftmaxBeforeOrAfterTheChoiceAndNormalisedOrNot) {
  expect_weights(route_tokens(logits(), {.top_k = 2}), kTerms[3] / kSum, kTerms[2] / kSum);
  const double two = kTerms[3] + kTerms[2];
  expect_weights(route_tokens(logits(), {.top_k = 2, .normalise = true}), kTerms[3] / two, kTerms[2] / two);
  expect_weights(route_tokens(logits(), {.top_k = 2, .pre_softmax = false}), kTerms[3] / two, kTerms[2] / two);
}

// In bf16 these two scores would be the same.
TEST(RouteTokens, ComputesScoresOfBf16LogitsInFp32) {
  const at::Tensor close = at::tensor({1.0, 1.0078125}).to(at::kBFloat16);
  const Routing routing = route_tokens(close, {.top_k = 2});
  EXPECT_EQ(routing.weights.scalar_type(), at::kFloat);
  EXPECT_NEAR((routing.weights[0] / routing.weights[1]).item<double>(), std::exp(0.0078125), 1e-6);
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// The bias makes expert 1 the first choice, but its weight is computed from its own score.
TEST(RouteTokens, ABiasChoosesButHasNoWeight) {
  const at::Tensor bias = at::tensor({0.0, 2.0, 0.0, 0.0}, at::kFloat);
  const Routing routing = route_tokens(logits(), {.top_k = 2, .sigmoid = true, .scale = 2.5}, bias);
  EXPECT_TRUE(at::equal(routing.experts, at::tensor({1, 2}, at::kLong).unsqueeze(0)));
  EXPECT_NEAR(routing.weights[0][0].item<double>(), 2.5 * sigmoid(0), 1e-15);
  EXPECT_NEAR(routing.weights[0][1].item<double>(), 2.5 * sigmoid(3), 1e-15);
  const Routing normalised = route_tokens(logits(), {.top_k = 2, .normalise = true, .sigmoid = true}, bias);
  EXPECT_NEAR(normalised.weights[0][0].item<double>(), sigmoid(0) / (sigmoid(0) + sigmoid(3)), 1e-15);
}

// Experts 0 and 1 are the better pair, although 2 is the best expert.
TEST(RouteTokens, GroupsAreChosenByTheirTwoBestScores) {
  const at::Tensor given = at::tensor({2.0, 1.9, 3.0, -9.0}, at::kDouble).unsqueeze(0);
  const Routing routing = route_tokens(given, {.top_k = 2, .sigmoid = true, .groups = 2, .top_groups = 1});
  EXPECT_TRUE(at::equal(routing.experts, at::tensor({0, 1}, at::kLong).unsqueeze(0)));
  EXPECT_THAT([&] { route_tokens(given, {.top_k = 3, .sigmoid = true, .groups = 2, .top_groups = 1}); },
              ThrowsMessage<ConfigError>(HasSubstr("4 experts in 2 groups, 1 of them for a token with top_k 3")));
}

TEST(RouteTokens, RefusesMoreChoicesThanExperts) {
  EXPECT_THAT([] { route_tokens(at::ones({3, 4}), {.top_k = 5}); },
              ThrowsMessage<ConfigError>(HasSubstr("logits is Float [3, 4] and top_k 5")));
}

}  // namespace
}  // namespace concord::ops::testing::of_moe_router
