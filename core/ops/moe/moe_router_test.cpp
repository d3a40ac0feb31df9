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

struct RouteSize {
  int64_t tokens, experts, k;
};

// Logits of a token differ by 0.1 or more, so that finite differences do not change the choice; except in Double they
// are also multiples of 1/8, some of which are equal.
at::Tensor draw_logits(const RouteSize& size, Draw& draw, c10::ScalarType type) {
  const std::vector<int64_t> sizes = {size.tokens, size.experts};
  if (type != at::kDouble && draw.coin()) return draw.eighths(sizes, type);
  const at::Tensor ranks = draw.normal(sizes, at::kDouble).argsort(int64_t{-1}, /*descending=*/false).to(at::kDouble);
  const double step = std::max(0.15, 4.0 / static_cast<double>(size.experts));
  return (ranks * step + 0.02 * draw.normal(sizes, at::kDouble).clamp(-1, 1) - 2).to(type);
}

// exp(x - largest) has an error of as many roundings as its argument is large; sums and divisions add theirs.
double route_roundings(const at::Tensor& logits) {
  return 16 + 4 * (logits.max() - logits.min()).item<double>() + roundings_of_sum(logits.size(-1));
}

Sample route_sample(const RouteSize& size, Draw& draw, c10::ScalarType type) {
  const at::Tensor logits = draw_logits(size, draw, type);
  const auto slack = [=](const std::vector<c10::IValue>& a, const std::vector<at::Tensor>& exact) {
    const double off = route_roundings(a[0].toTensor().to(at::kDouble)) * sum_unit(type);
    return std::vector<at::Tensor>{off * exact[0].abs(), at::zeros_like(exact[1], at::TensorOptions(at::kDouble))};
  };
  return {{logits, size.k, draw.coin(), draw.coin(), draw.coin() ? 1 : 2.5}, 0, {}, slack};
}

// With p the softmax over all experts and w the weights: a few roundings of each term of p (g - sum(g w)), where the
// sum cancels for experts that were not chosen, and of w (g - sum(g w)).
Sample route_backward_sample(const RouteSize& size, Draw& draw, c10::ScalarType type) {
  const at::Tensor logits = draw_logits(size, draw, type);
  const at::Tensor experts = draw.normal({size.tokens, size.experts}, at::kDouble)
                                 .argsort(int64_t{-1}, /*descending=*/false)
                                 .narrow(-1, 0, size.k);
  const at::Tensor grad = draw.normal({size.tokens, size.k}, type == at::kDouble ? type : at::kFloat);
  const double scale = draw.coin() ? 1 : 2.5;
  const auto slack = [=](const std::vector<c10::IValue>& a, const std::vector<at::Tensor>&) {
    const at::Tensor wide = a[1].toTensor().to(at::kDouble), chosen = a[2].toTensor();
    const at::Tensor g = a[0].toTensor().to(at::kDouble).abs() * scale;
    const at::Tensor p = at::softmax(wide, -1), w = at::softmax(wide.gather(-1, chosen), -1);
    const at::Tensor mean = (g * w).sum(-1, true);
    return std::vector<at::Tensor>{route_roundings(wide) * sum_unit(type) *
                                   (2 * p * mean).scatter_add(-1, chosen, 2 * w * (g + mean))};
  };
  return {{grad, logits, experts.contiguous(), draw.coin(), draw.coin(), scale}, 0, {}, slack};
}

RouteSize draw_route(Draw& draw) {
  const int64_t experts = draw.size();
  return {draw.between(1, 20), experts, draw.between(1, std::min<int64_t>(experts, 9))};
}

const RegisterSamples kRoute("concord::moe_route", [](Draw& draw, c10::ScalarType type) {
  return route_sample(draw_route(draw), draw, type);
});
const RegisterSamples kRouteBackward("concord::moe_route_backward", [](Draw& draw, c10::ScalarType type) {
  return route_backward_sample(draw_route(draw), draw, type);
});

// Numbers of experts for 1, 2, 4, 8 and 16 per thread, and more.
std::vector<SampleMaker> for_routes(Sample (*make)(const RouteSize&, Draw&, c10::ScalarType)) {
  const std::vector<RouteSize> sizes = {{20, 7, 3},     {4096, 64, 8}, {515, 128, 8}, {1030, 256, 8},
                                        {260, 512, 10}, {100, 32, 32}, {33, 600, 4}};
  std::vector<SampleMaker> made;
  for (const RouteSize& size : sizes) {
    made.push_back([=](Draw& draw, c10::ScalarType type) { return make(size, draw, type); });
  }
  return made;
}
const RegisterRealSizes kRealRoute("concord::moe_route", for_routes(route_sample));
const RegisterRealSizes kRealRouteBackward("concord::moe_route_backward", for_routes(route_backward_sample));

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
