#include "core/ops/loss/linear_cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <vector>

#include "core/base/config_error.h"
#include "core/ops/linear.h"

namespace concord {
namespace {

using at::Tensor;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr double kGrad = 0.25;

struct LinearCrossEntropy : ::testing::Test {
  LinearCrossEntropy() { labels[3] = -100; }

  // Chunks of |rows| rows, with all other options set.
  PiecewiseLoss in_pieces(int64_t rows) const {
    return {.cross_entropy = {.vocabulary = 38, .label_smoothing = 0.1, .z_loss = 0.01, .expected_grad = kGrad},
            .rows = rows};
  }
  // The results of autograd for the layer and the loss, with |grad_losses| as gradients of the losses.
  struct Expected {
    Tensor losses, x, weight;
  };
  Expected expected(const Tensor& grad_losses) const {
    const Tensor own_x = x.detach().requires_grad_(), own_weight = weight.detach().requires_grad_();
    CrossEntropyOptions options = in_pieces(1).cross_entropy;
    options.expected_grad = 0;
    const Tensor losses = cross_entropy(concord::linear(own_x, own_weight), labels, options);
    losses.backward(grad_losses);
    return {losses.detach(), own_x.grad(), own_weight.grad()};
  }
  static double off(const Tensor& a, const Tensor& b) { return (a - b).abs().max().item<double>(); }

  Tensor x = at::randn({11, 6}, at::kDouble).requires_grad_();
  Tensor weight = at::randn({40, 6}, at::kDouble).requires_grad_();
  Tensor labels = at::randint(38, {11}, at::kLong);
  Tensor grads = at::full({11}, kGrad, at::kDouble);
  int added = 0;
  GradSink sink{.main = at::zeros({40, 6}, at::kDouble), .added = [this] { ++added; }};
};

// In fp64: sums of at most 40 terms near 1, in a different order.
TEST_F(LinearCrossEntropy, IsThatOfAllRowsInPieces) {
  const Expected all = expected(grads);
  for (const int64_t rows : {1, 4, 11, 100}) {
    SCOPED_TRACE(rows);
    sink.main.zero_();
    x.mutable_grad().reset();
    added = 0;
    const Tensor losses = linear_cross_entropy(x, weight, labels, &sink, in_pieces(rows));
    EXPECT_EQ(added, 0) << "not before backward";
    EXPECT_LE(off(losses.detach(), all.losses), 1e-13);
    losses.backward(grads);
    EXPECT_EQ(added, 1);
    EXPECT_LE(off(x.grad(), all.x), 1e-13);
    EXPECT_LE(off(sink.main, all.weight), 1e-13);
    EXPECT_FALSE(weight.grad().defined());
  }
}

// The sink's buffer holds the gradient of the last step, or of this step; deferred additions run immediately.
TEST_F(LinearCrossEntropy, AddsToTheSinkOrReplacesWhatIsStale) {
  DeferredWgrads later;
  sink.deferred = &later;
  sink.is_stale = std::make_shared<bool>(true);
  sink.main.fill_(7);
  const Expected all = expected(grads);
  for (const double times : {1, 2}) {
    linear_cross_entropy(x, weight, labels, &sink, in_pieces(4)).backward(grads);
    EXPECT_LE(off(sink.main, all.weight * times), 1e-13);
  }
  EXPECT_EQ(later.size(), 0u);
}

TEST_F(LinearCrossEntropy, ShowsTheLogitsOfEachPiece) {
  std::vector<int64_t> rows;
  PiecewiseLoss how = in_pieces(4);
  how.reader = [&](const Tensor& logits, const Tensor& own_labels) {
    const Tensor own = x.detach().narrow(0, 4 * static_cast<int64_t>(rows.size()), logits.size(0));
    EXPECT_LE(off(logits, own.matmul(weight.detach().t())), 1e-13);
    EXPECT_EQ(own_labels.size(0), logits.size(0));
    rows.push_back(logits.size(0));
  };
  linear_cross_entropy(x, weight, labels, &sink, how);
  EXPECT_THAT(rows, ::testing::ElementsAre(4, 4, 3));
}

TEST_F(LinearCrossEntropy, OfAFrozenWeightTakesAnyGradient) {
  const Tensor others = at::arange(11, at::kDouble);
  const Expected all = expected(others);
  weight.requires_grad_(false);
  linear_cross_entropy(x, weight, labels, nullptr, in_pieces(4)).backward(others);
  EXPECT_LE(off(x.grad(), all.x), 1e-12);
}

TEST_F(LinearCrossEntropy, OfATrainedWeightIsNotFiniteWithAnotherGradient) {
  Tensor others = grads.clone();
  others[5] = 1;
  linear_cross_entropy(x, weight, labels, &sink, in_pieces(4)).backward(others);
  EXPECT_TRUE(x.grad()[5].isnan().all().item<bool>());
  EXPECT_EQ(x.grad().isnan().sum().item<int64_t>(), 6);
}

TEST_F(LinearCrossEntropy, AddsNothingWithoutADerivative) {
  const at::NoGradGuard no_grad;
  const Tensor losses = linear_cross_entropy(x, weight, labels, &sink, in_pieces(4));
  EXPECT_EQ(sink.main.abs().sum().item<double>(), 0);
  EXPECT_FALSE(losses.requires_grad());
  const at::AutoGradMode with_grad(true);
  EXPECT_LE(off(losses, expected(grads).losses), 1e-13);
}

TEST_F(LinearCrossEntropy, RefusesWhatDoesNotFit) {
  const auto with = [&](const Tensor& own_x, const GradSink* own_sink, const PiecewiseLoss& how) {
    return [=, this] { linear_cross_entropy(own_x, weight, labels, own_sink, how); };
  };
  EXPECT_THAT(with(x.detach().narrow(1, 0, 5), &sink, in_pieces(4)), ThrowsMessage<ConfigError>(HasSubstr("[v, in]")));
  EXPECT_THAT(with(x, &sink, in_pieces(0)), ThrowsMessage<ConfigError>(HasSubstr("rows is 0")));
  EXPECT_THAT(with(x, nullptr, in_pieces(4)), ThrowsMessage<ConfigError>(HasSubstr("needs a sink")));
  PiecewiseLoss unknown = in_pieces(4);
  unknown.cross_entropy.expected_grad = 0;
  EXPECT_THAT(with(x, &sink, unknown), ThrowsMessage<ConfigError>(HasSubstr("expected_grad 0")));
}

}  // namespace
}  // namespace concord
