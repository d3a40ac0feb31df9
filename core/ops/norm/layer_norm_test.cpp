#include "core/ops/norm/layer_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>

#include "core/base/config_error.h"
#include "core/ops/testing/samples.h"

namespace concord::ops::testing::of_layer_norm {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Sample forward_sample(Draw& draw, c10::ScalarType type) {
  const int64_t width = draw.size();
  std::vector<int64_t> sizes = {draw.between(1, 5), width};
  if (draw.coin()) sizes.insert(sizes.begin(), draw.size());
  const at::Tensor x = draw.normal(sizes, type);
  const at::Tensor weight = draw.normal({width}, type);
  const c10::IValue bias = draw.coin() ? c10::IValue(draw.normal({width}, type)) : c10::IValue();
  constexpr double kEps = 1e-2;  // a row of one value has no variance, so 1 / sqrt(eps) amplifies its rounding
  return {{x, weight, bias, kEps}, 32, {largest(x) * largest(weight) / std::sqrt(kEps), largest(x)}};
}

Sample backward_sample(Draw& draw, c10::ScalarType type) {
  const Sample made = forward_sample(draw, type);
  const at::Tensor x = made.arguments[0].toTensor();
  const at::Tensor weight = made.arguments[1].toTensor();
  const at::Tensor grad = draw.normal(x.sizes().vec(), type);
  const auto sums = type == at::kDouble ? type : at::kFloat;
  const at::Tensor wide = x.to(at::kDouble);
  const at::Tensor mean = wide.mean(-1, true);
  const at::Tensor rstd = (((wide - mean) * (wide - mean)).mean(-1) + 1e-2).rsqrt();
  const double size = largest(grad) * largest(weight) * largest(rstd);
  return {{grad, x, weight, mean.squeeze(-1).to(sums), rstd.to(sums)}, 64, {size, size * largest(x)}};
}

const RegisterSamples kForward("concord::layer_norm", forward_sample);
const RegisterSamples kBackward("concord::layer_norm_backward", backward_sample);

TEST(LayerNorm, IsLibtorchs) {
  Draw draw(1);
  const at::Tensor x = draw.normal({3, 5, 33}, at::kDouble);
  const at::Tensor weight = draw.normal({33}, at::kDouble);
  const at::Tensor bias = draw.normal({33}, at::kDouble);
  EXPECT_LE(largest(layer_norm(x, weight, bias, 1e-5) - at::layer_norm(x, {33}, weight, bias, 1e-5)), 1e-13);
  EXPECT_LE(largest(layer_norm(x, weight, {}, 1e-5) - at::layer_norm(x, {33}, weight, {}, 1e-5)), 1e-13);
}

TEST(LayerNorm, RefusesABiasOfAnotherSizeAndNamesIt) {
  EXPECT_THAT([] { layer_norm(at::ones({3, 8}), at::ones({8}), at::ones({9}), 1e-6); },
              ThrowsMessage<ConfigError>(HasSubstr("bias Float [9]")));
}

}  // namespace
}  // namespace concord::ops::testing::of_layer_norm
