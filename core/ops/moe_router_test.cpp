#include "core/ops/moe_router.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>

#include <cmath>

#include "core/config_error.h"
#include "core/ops/testing/samples.h"

namespace concord::ops::testing::of_moe_router {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

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

TEST(RouteTokens, RefusesMoreChoicesThanExperts) {
  EXPECT_THAT([] { route_tokens(at::ones({3, 4}), {.top_k = 5}); },
              ThrowsMessage<ConfigError>(HasSubstr("logits is Float [3, 4] and top_k 5")));
}

}  // namespace
}  // namespace concord::ops::testing::of_moe_router
