// Gradients that are added to bf16 memory: operators sum in fp32, and each sum is rounded to nearest once.
#include "core/ops/grad_sink.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>

#include "core/ops/embedding.h"
#include "core/ops/linear.h"
#include "core/ops/loss/linear_cross_entropy.h"
#include "core/ops/moe/grouped_linear.h"

namespace concord::of_grad_sink {
namespace {

using at::Tensor;

// Adds a gradient to the sink of |weight|.
using AddGrad = std::function<void(const Tensor& weight, const GradSink& sink)>;

Tensor draw(at::IntArrayRef sizes) { return at::randn(sizes, at::kBFloat16).requires_grad_(); }

// Adds two gradients to NaNs of an earlier step, in fp32 one at a time and in bf16, in backward and deferred.
void expect_one_rounding(at::IntArrayRef sizes, const std::vector<AddGrad>& add) {
  const Tensor weight = draw(sizes);
  std::vector<Tensor> sums;
  for (const AddGrad& each : add) {
    const GradSink sink{.main = at::zeros(sizes, at::kFloat)};
    each(weight, sink);
    sums.push_back(sink.main);
  }
  const Tensor first = sums[0].to(at::kBFloat16), expected = (first.to(at::kFloat) + sums[1]).to(at::kBFloat16);
  for (const bool defers : {false, true}) {
    DeferredWgrads later;
    int added = 0;
    const GradSink sink{.main = at::full(sizes, std::numeric_limits<double>::quiet_NaN(), at::kBFloat16),
                        .added = [&] { ++added; },
                        .deferred = defers ? &later : nullptr,
                        .is_stale = std::make_shared<bool>(true)};
    add[0](weight, sink);
    later.run_all();
    EXPECT_TRUE(sink.main.equal(first)) << defers;
    add[1](weight, sink);
    later.run_all();
    EXPECT_TRUE(sink.main.equal(expected)) << defers;
    EXPECT_EQ(added, 2);
  }
}

TEST(GradSink, LinearRoundsTheSumOfItsRowsOnce) {
  std::vector<AddGrad> add;
  for (int i = 0; i < 2; ++i) {
    add.emplace_back([x = draw({17, 8}), grad = at::randn({17, 12}, at::kBFloat16)](
                         const Tensor& w, const GradSink& s) { concord::linear(x, w, {}, &s).backward(grad); });
  }
  expect_one_rounding({12, 8}, add);
}

TEST(GradSink, AnEmbeddingRoundsTheSumOfAllTokensOnce) {
  std::vector<AddGrad> add;
  for (int i = 0; i < 2; ++i) {
    add.emplace_back([ids = at::randint(3, {50}, at::kLong), grad = at::randn({50, 8}, at::kBFloat16)](
                         const Tensor& w, const GradSink& s) { concord::embedding(w, ids, {}, &s).backward(grad); });
  }
  expect_one_rounding({4, 8}, add);
}

TEST(GradSink, GroupedLinearRoundsTheSumOfAGroupOnce) {
  std::vector<AddGrad> add;
  for (int i = 0; i < 2; ++i) {
    const Tensor ends = at::zeros({2}, at::kLong);
    ends[0] = 5;
    ends[1] = 9;
    add.emplace_back([ends, x = draw({9, 8}), grad = at::randn({9, 4}, at::kBFloat16)](
                         const Tensor& w, const GradSink& s) { grouped_linear(x, w, ends, &s).backward(grad); });
  }
  expect_one_rounding({2, 4, 8}, add);
}

// The loss adds a part for every chunk of rows.
TEST(GradSink, ALossInPiecesRoundsTheSumOfItsPiecesOnce) {
  constexpr double kGrad = 0.25;
  std::vector<AddGrad> add;
  for (int i = 0; i < 2; ++i) {
    add.emplace_back(
        [x = draw({24, 8}), labels = at::randint(10, {24}, at::kLong)](const Tensor& w, const GradSink& s) {
          GradSink immediate = s;  // a loss never defers
          const PiecewiseLoss how{.cross_entropy = {.expected_grad = kGrad}, .rows = 2};
          const Tensor losses = linear_cross_entropy(x, w, labels, &immediate, how);
          losses.backward(at::full(losses.sizes(), kGrad, losses.options()));
        });
  }
  expect_one_rounding({10, 8}, add);
}

// Without rows there is nothing to add to what is stale.
TEST(GradSink, ALossWithoutRowsLeavesWhatIsStale) {
  const Tensor weight = draw({10, 8});
  const GradSink sink{.main = at::zeros({10, 8}, at::kBFloat16), .is_stale = std::make_shared<bool>(true)};
  linear_cross_entropy(draw({0, 8}), weight, at::zeros({0}, at::kLong), &sink,
                       {.cross_entropy = {.expected_grad = 1}, .rows = 2});
  EXPECT_TRUE(*sink.is_stale);
  EXPECT_TRUE(sink.main.eq(0).all().item<bool>());
}

}  // namespace
}  // namespace concord::of_grad_sink
