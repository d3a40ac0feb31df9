#include "core/ops/loss/cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "core/base/config_error.h"
#include "core/ops/testing/samples.h"

namespace concord::ops::testing::of_cross_entropy {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Labels of a vocabulary in which these columns are only a part.
struct Part {
  Part(Draw& draw, c10::ScalarType type)
      : rows(draw.size()),
        width(draw.coin() ? draw.size() : 2048 + draw.between(-3, 70)),
        used(draw.coin() ? width : draw.between(1, width)),
        first(draw.coin() ? 0 : draw.between(1, 100)),
        logits(draw.normal({rows, width}, type, draw.coin() ? 1 : 20)),
        labels(draw.integers({rows}, -1, first + width + 5)) {}
  int64_t rows, width, used, first;
  at::Tensor logits, labels;
};

const RegisterSamples kParts("concord::cross_entropy_parts", [](Draw& draw, c10::ScalarType type) {
  const Part part(draw, type);
  const double size = static_cast<double>(part.width) * largest(part.logits);
  return Sample{{part.logits, part.labels, part.first, part.used, draw.coin()}, 16, {size}};
});

const RegisterSamples kGrad("concord::cross_entropy_grad_", [](Draw& draw, c10::ScalarType type) {
  const Part part(draw, type);
  const auto sums = type == at::kDouble ? type : at::kFloat;
  const at::Tensor log_sum = at::logsumexp(part.logits.to(at::kDouble), {1}).to(sums);
  const auto numbers = [&] { return draw.normal({part.rows}, sums); };
  // exp(x - log_sum) has an error of as many roundings as its argument is large.
  const double roundings = 32 + 4 * largest(part.logits) + 4 * largest(log_sum);
  return Sample{
      {part.logits, part.labels, part.first, part.used, log_sum, numbers(), numbers(), numbers()}, roundings, {4}};
});

const RegisterSamples kWithGrad("concord::cross_entropy_with_grad_", [](Draw& draw, c10::ScalarType type) {
  const Part part(draw, type);
  const auto sums = type == at::kDouble ? type : at::kFloat;
  const at::Tensor labels = draw.integers({part.rows}, -1, part.used - 1);
  const double top = largest(part.logits), z_loss = draw.coin() ? 0 : 1e-2;
  const double spread = top + std::log(static_cast<double>(part.used));  // range of the arguments of exp
  // The sum and its logarithm, exp of differences with as many roundings as they are large, and for smoothing a sum of
  // all logits.
  const double roundings = 64 + 8 * spread + 2 * std::sqrt(static_cast<double>(part.used));
  const double loss_size = spread + z_loss * spread * spread + top;
  return Sample{{part.logits, at::zeros({part.rows}, sums), labels, part.used, /*ignore_index=*/-1,
                 draw.coin() ? 0.0 : 0.1, z_loss, 0.75},
                roundings,
                {1 + 2 * z_loss * spread, loss_size}};
});

const RegisterSamples kRescale("concord::cross_entropy_rescale_", [](Draw& draw, c10::ScalarType type) {
  const Part part(draw, type);
  const at::Tensor grad = draw.normal({part.rows}, type == at::kDouble ? type : at::kFloat);
  grad[0] = 0.75;
  return Sample{{part.logits, grad, 0.75}, 4};
});

at::Tensor gradient(const at::Tensor& loss, const at::Tensor& of, const at::Tensor& weights) {
  return torch::autograd::grad({(loss * weights).sum()}, {of}).at(0);
}

// The ranks of a vocabulary in one process: all parts are known before the first rank gathers them.
struct AllShares {
  explicit AllShares(int64_t count) : parts(static_cast<size_t>(count)) {}
  VocabShare share(int64_t index) {
    const auto gather = [this, index](const at::Tensor& all, const at::Tensor& mine) {
      parts[static_cast<size_t>(index)] = mine.clone();
      for (at::Tensor& each : parts) {
        if (!each.defined()) each = at::zeros_like(mine);
      }
      all.copy_(at::stack(parts));
    };
    return {index, static_cast<int64_t>(parts.size()), gather};
  }
  std::vector<at::Tensor> parts;
};

struct Case {
  int64_t rows;
  int64_t vocabulary;
  int64_t ranks;
  int64_t width;  // columns per rank
  double smoothing;
  double z_loss;
  bool overwrite;
  double expected = 0;       // expected gradient of the losses, if given
  bool as_expected = false;  // whether backward receives it
};

// libtorch's cross entropy plus the z-loss.
at::Tensor expected_loss(const at::Tensor& logits, const at::Tensor& labels, const Case& c) {
  const at::Tensor plain = at::cross_entropy_loss(logits, labels, {}, /*reduction=none*/ 0, -100, c.smoothing);
  const at::Tensor lse = at::logsumexp(logits, {1});
  return plain + c.z_loss * lse * lse * (labels != -100);
}

void check_case(const Case& c, uint64_t seed) {
  SCOPED_TRACE(::testing::Message() << c.rows << " rows, vocabulary " << c.vocabulary << ", ranks " << c.ranks);
  Draw draw(seed);
  const at::Tensor padded = draw.normal({c.rows, c.ranks * c.width}, at::kDouble, 3);
  at::Tensor labels = draw.integers({c.rows}, 0, c.vocabulary - 1);
  labels[draw.between(0, c.rows - 1)] = -100;
  const at::Tensor weights = draw.normal({c.rows}, at::kDouble);
  if (c.as_expected) weights.fill_(c.expected);

  const at::Tensor whole = padded.narrow(1, 0, c.vocabulary).clone().requires_grad_(true);
  const at::Tensor expected = expected_loss(whole, labels, c);
  const at::Tensor expected_grad = gradient(expected, whole, weights);

  const CrossEntropyOptions options{.vocabulary = c.vocabulary,
                                    .label_smoothing = c.smoothing,
                                    .z_loss = c.z_loss,
                                    .overwrite_logits = c.overwrite,
                                    .expected_grad = c.expected};
  AllShares all(c.ranks);
  const auto shard = [&](int64_t r) { return padded.narrow(1, r * c.width, c.width).clone(); };
  for (int64_t r = 0; r < c.ranks; ++r) cross_entropy(shard(r), labels, options, all.share(r));
  std::vector<at::Tensor> grads;
  for (int64_t r = 0; r < c.ranks; ++r) {
    const at::Tensor logits = shard(r).requires_grad_(true);
    const at::Tensor loss = cross_entropy(logits, labels, options, all.share(r));
    EXPECT_LE(largest(loss - expected), 1e-12);
    grads.push_back(gradient(loss, logits, weights));
    EXPECT_EQ(grads.back().data_ptr() == logits.data_ptr(), c.overwrite);
  }
  const at::Tensor grad = at::cat(grads, 1);
  EXPECT_LE(largest(grad.narrow(1, 0, c.vocabulary) - expected_grad), 1e-12);
  EXPECT_EQ(largest(grad.narrow(1, c.vocabulary, c.ranks * c.width - c.vocabulary)), 0);
}

TEST(CrossEntropy, IsLibtorchsOverAnyCutWithSmoothingZLossPaddingAndIgnoredLabels) {
  check_case({7, 33, 1, 33, 0, 0, false}, 1);
  check_case({7, 33, 1, 40, 0.1, 0, true}, 2);
  check_case({5, 50, 3, 17, 0, 1e-2, true}, 3);
  check_case({1, 1, 1, 1, 0.2, 1e-3, false}, 4);
  check_case({9, 5000, 2, 2501, 0.05, 1e-3, true}, 5);
  check_case({3, 10, 4, 5, 0.3, 0.1, false}, 6);  // two of the four ranks hold only padding
}

TEST(CrossEntropy, WithAnAnnouncedGradientIsTheSameWhetherItComesOrAnother) {
  for (const bool as_expected : {true, false}) {
    check_case({7, 33, 1, 40, 0, 0, true, 0.25, as_expected}, 7);
    check_case({9, 300, 1, 301, 0.1, 1e-2, true, -3, as_expected}, 8);
    check_case({5, 50, 3, 17, 0, 1e-2, true, 2, as_expected}, 9);
    check_case({5, 50, 1, 50, 0, 0, false, 2, as_expected},
               10);  // logits are not overwritten, so nothing is computed in advance
  }
}

TEST(CrossEntropy, TellsWhoeverUsesLogitsThatWereOverwritten) {
  Draw draw(3);
  const at::Tensor logits = draw.normal({2, 5}, at::kFloat).requires_grad_(true) * 1;
  const at::Tensor labels = draw.integers({2}, 0, 4);
  const at::Tensor other = (logits * logits).sum();
  cross_entropy(logits, labels, {.overwrite_logits = true}).sum().backward({}, /*retain_graph=*/true);
  EXPECT_THAT([&] { other.backward(); }, ::testing::Throws<c10::Error>());
}

TEST(CrossEntropy, RefusesBadInputAndNamesIt) {
  const at::Tensor logits = at::zeros({3, 8});
  const auto labels = [](int64_t value) { return at::zeros({3}, at::kLong) + value; };
  EXPECT_THAT([&] { cross_entropy(logits, labels(8)); },
              ThrowsMessage<ConfigError>(HasSubstr("label 0 is 8; must be from 0 to 7")));
  EXPECT_THAT([&] { cross_entropy(logits, labels(-1)); }, ThrowsMessage<ConfigError>(HasSubstr("label 0 is -1")));
  EXPECT_THAT([&] { cross_entropy(logits, labels(7), {.vocabulary = 7}); },
              ThrowsMessage<ConfigError>(HasSubstr("from 0 to 6")));
  EXPECT_THAT([&] { cross_entropy(logits, labels(0).narrow(0, 0, 2)); },
              ThrowsMessage<ConfigError>(HasSubstr("logits are Float [3, 8] and labels Long [2]")));
  EXPECT_THAT([&] { cross_entropy(logits, labels(0), {.vocabulary = 9}); },
              ThrowsMessage<ConfigError>(HasSubstr("a vocabulary of 9 does not fit into 1 x 8")));
  EXPECT_THAT([&] { cross_entropy(logits, labels(0), {.label_smoothing = 1.5}); },
              ThrowsMessage<ConfigError>(HasSubstr("label_smoothing is 1.5")));
}

}  // namespace
}  // namespace concord::ops::testing::of_cross_entropy
