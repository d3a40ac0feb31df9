#include "core/ops/rms_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>

#include "core/config_error.h"
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

// Every row's derivative is a difference of terms as large as grad * weight * rstd.
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

TEST(RmsNorm, OfOnesIsTheWeight) {
  const at::Tensor y = rms_norm(at::ones({3, 8}), 2 * at::ones({8}), 0);
  EXPECT_EQ(largest(y - 2), 0);
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
