#include "core/ops/norm/rms_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include "core/base/config_error.h"
#include "core/ops/testing/samples.h"

namespace concord::ops::testing::of_rms_norm {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Sample forward_sample(Draw& draw, c10::ScalarType type) {
  const int64_t width = draw.size();
  std::vector<int64_t> sizes = {draw.between(1, 5), width};
  if (draw.coin()) sizes.insert(sizes.begin(), draw.size());
  return {{draw.normal(sizes, type), draw.normal({width}, type), draw.coin() ? 1e-6 : 0.1}};
}

// The derivative of a row is a difference of terms of the size of grad * weight * rstd.
Sample backward_sample(Draw& draw, c10::ScalarType type) {
  const Sample made = forward_sample(draw, type);
  const at::Tensor x = made.arguments[0].toTensor();
  const at::Tensor weight = made.arguments[1].toTensor();
  const at::Tensor grad = draw.normal(x.sizes().vec(), type);
  const at::Tensor wide = x.to(at::kDouble);
  const at::Tensor rstd = ((wide * wide).mean(-1) + 1e-6).rsqrt().to(type == at::kDouble ? type : at::kFloat);
  return {{grad, x, weight, rstd}, 32, {largest(grad) * largest(weight) * largest(rstd)}};
}

const RegisterSamples kForward("concord::rms_norm", forward_sample);
const RegisterSamples kBackward("concord::rms_norm_backward", backward_sample);

const RegisterSamples kAdd("concord::add_rms_norm", [](Draw& draw, c10::ScalarType type) {
  const Sample made = forward_sample(draw, type);
  const std::vector<int64_t> sizes = made.arguments[0].toTensor().sizes().vec();
  const double multiplier = draw.coin() ? 1 : 0.5;
  return Sample{
      {draw.eighths(sizes, type), draw.eighths(sizes, type), made.arguments[1], made.arguments[2], multiplier}};
});

const RegisterSamples kAddBackward("concord::add_rms_norm_backward", [](Draw& draw, c10::ScalarType type) {
  Sample made = backward_sample(draw, type);
  const at::Tensor more = draw.normal(made.arguments[0].toTensor().sizes().vec(), type);
  made.arguments.insert(made.arguments.begin(), more);
  made.magnitudes[0] += largest(more);
  made.ascend_slack = rounded_before_the_sum(type);  // torch_npu has no operator that adds
  return made;
});

TEST(RmsNorm, OfOnesIsTheWeight) {
  const at::Tensor y = rms_norm(at::ones({3, 8}), 2 * at::ones({8}), 0);
  EXPECT_EQ(largest(y - 2), 0);
}

// The harness differentiates the first result only, the sum.
TEST(AddRmsNorm, IsAnAdditionAndANormAlsoInItsGradients) {
  Draw draw(2);
  const auto leaf = [&](std::vector<int64_t> sizes) {
    return draw.normal(std::move(sizes), at::kDouble).requires_grad_(true);
  };
  const at::Tensor x = leaf({3, 5, 16}), branch = leaf({3, 5, 16}), weight = leaf({16});
  const at::Tensor of_sum = draw.normal({3, 5, 16}, at::kDouble), of_norm = draw.normal({3, 5, 16}, at::kDouble);
  const auto gradients = [&](const NormedSum& made) {
    return torch::autograd::grad({(made.sum * of_sum).sum() + (made.normed * of_norm).sum()}, {x, branch, weight});
  };
  const NormedSum made = add_rms_norm(x, branch, weight, 1e-5, 0.25);
  const at::Tensor sum = x + 0.25 * branch;
  const NormedSum expected{sum, rms_norm(sum, weight, 1e-5)};
  EXPECT_LE(largest(made.sum - expected.sum) + largest(made.normed - expected.normed), 1e-14);
  const auto got = gradients(made), right = gradients(expected);
  for (size_t i = 0; i < 3; ++i) EXPECT_LE(largest(got[i] - right[i]), 1e-13) << "gradient " << i;
}

TEST(AddRmsNorm, RefusesABranchOfAnotherSize) {
  EXPECT_THAT([] { add_rms_norm(at::ones({3, 8}), at::ones({2, 8}), at::ones({8}), 1e-6); },
              ThrowsMessage<ConfigError>(HasSubstr("x is Float [3, 8] and the branch Float [2, 8]")));
}

TEST(RmsNorm, RefusesAWeightOfAnotherSizeAndNamesBoth) {
  EXPECT_THAT([] { rms_norm(at::ones({3, 8}), at::ones({7}), 1e-6); },
              ThrowsMessage<ConfigError>(HasSubstr("operator rms_norm: x is Float [3, 8] and weight Float [7]")));
}

TEST(RmsNorm, RefusesAWeightOfAnotherType) {
  EXPECT_THAT([] { rms_norm(at::ones({3, 8}), at::ones({8}, at::kDouble), 1e-6); },
              ThrowsMessage<ConfigError>(HasSubstr("weight is Double [8]")));
}

TEST(RmsNorm, HasNoSecondDerivative) {
  const at::Tensor x = at::ones({2, 4}).requires_grad_(true);
  const at::Tensor y = rms_norm(x, at::ones({4}), 1e-6).sum();
  EXPECT_THAT([&] { y.backward({}, std::nullopt, /*create_graph=*/true); },
              ThrowsMessage<ConfigError>(HasSubstr("rms_norm has only a first derivative")));
}

}  // namespace
}  // namespace concord::ops::testing::of_rms_norm
