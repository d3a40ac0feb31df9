#include "core/ops/attention/causal_conv.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/silu.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "core/base/config_error.h"
#include "core/ops/testing/samples.h"

namespace concord::ops::testing::of_causal_conv {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Sample draw_conv(Draw& draw, c10::ScalarType type) {
  const int64_t tokens = draw.size(), channels = draw.size(), taps = draw.between(1, 5);
  const bool packed = draw.coin();
  const std::vector<int64_t> cuts =
      packed ? std::vector<int64_t>{0, tokens / 3, tokens / 3, tokens} : std::vector<int64_t>{};
  const at::Tensor x = draw.normal({packed ? 1 : 2, tokens, channels}, type),
                   weight = draw.normal({channels, taps}, type);
  return {{x, weight, cuts}, 32, {5 * largest(x) * largest(weight)}};
}

Sample draw_backward(Draw& draw, c10::ScalarType type) {
  Sample made = draw_conv(draw, type);
  const at::Tensor x = made.arguments[0].toTensor(), weight = made.arguments[1].toTensor();
  const at::Tensor grad = draw.normal(x.sizes().vec(), type);
  // The derivative of silu contains y, which is a sum of up to five products.
  const double size = largest(grad) * (1 + 5 * largest(x) * largest(weight));
  made.arguments.insert(made.arguments.begin(), grad);
  const double terms = static_cast<double>(x.size(0) * x.size(1));
  return {made.arguments, 64, {5 * size * largest(weight), size * largest(x) * std::sqrt(terms)}};
}

const RegisterSamples kForward("concord::causal_conv", draw_conv);
const RegisterSamples kBackward("concord::causal_conv_backward", draw_backward);

// Compared with libtorch's padded convolution with one group per channel, as in transformers.
TEST(CausalConv, IsLibtorchsConvolutionOfEachSequence) {
  Draw draw(1);
  const at::Tensor x = draw.normal({1, 12, 3}, at::kDouble).requires_grad_(true);
  const at::Tensor weight = draw.normal({3, 4}, at::kDouble).requires_grad_(true);
  const at::Tensor grad = draw.normal({1, 12, 3}, at::kDouble);
  const auto expected_of = [&](int64_t begin, int64_t tokens) {
    const at::Tensor channels_first = x.narrow(1, begin, tokens).transpose(1, 2);
    return at::silu(at::conv1d(channels_first, weight.unsqueeze(1), {}, {1}, {3}, {1}, 3).narrow(2, 0, tokens))
        .transpose(1, 2);
  };
  const at::Tensor got = causal_conv(x, weight, {0, 5, 12});
  const at::Tensor expected = at::cat({expected_of(0, 5), expected_of(5, 7)}, 1);
  EXPECT_LE(largest(got - expected), 1e-13);
  EXPECT_LE(largest(causal_conv(x, weight) - expected_of(0, 12)), 1e-13);
  const auto got_grads = torch::autograd::grad({got}, {x, weight}, {grad});
  const auto expected_grads = torch::autograd::grad({expected}, {x, weight}, {grad});
  for (size_t i = 0; i < 2; ++i) EXPECT_LE(largest(got_grads[i] - expected_grads[i]), 1e-12) << i;
}

TEST(CausalConv, RefusesSizesThatDoNotFit) {
  const at::Tensor x = at::ones({2, 6, 3});
  EXPECT_THAT([&] { causal_conv(x, at::ones({4, 4})); },
              ThrowsMessage<ConfigError>(HasSubstr("weight Float [4, 4]; must be [B, S, channels] and [channels, K]")));
  EXPECT_THAT([&] { causal_conv(x, at::ones({3, 4}), {0, 6}); },
              ThrowsMessage<ConfigError>(HasSubstr("must rise from 0 to the tokens of its one row")));
}

}  // namespace
}  // namespace concord::ops::testing::of_causal_conv
