#include "core/ops/swiglu.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>

#include <limits>

#include "core/base/config_error.h"
#include "core/ops/testing/samples.h"

namespace concord::ops::testing::of_swiglu {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

at::Tensor draw_gate_up(Draw& draw, c10::ScalarType type) {
  return draw.normal({draw.size(), draw.between(1, 3), 2 * draw.size()}, type, draw.coin() ? 1 : 5);
}

const RegisterSamples kForward("concord::swiglu",
                               [](Draw& draw, c10::ScalarType type) { return Sample{{draw_gate_up(draw, type)}}; });

const RegisterSamples kBackward("concord::swiglu_backward", [](Draw& draw, c10::ScalarType type) {
  const at::Tensor gate_up = draw_gate_up(draw, type);
  auto sizes = gate_up.sizes().vec();
  sizes.back() /= 2;
  const at::Tensor grad = draw.normal(sizes, type);
  return Sample{{grad, gate_up}, 16, {largest(grad) * largest(gate_up) * largest(gate_up)}};
});

TEST(Swiglu, OfHugeGatesIsZeroOrTheProductAndOfNanIsNan) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor y = swiglu(at::tensor({-1e30f, -200.0f, 200.0f, kNan, 3.0f, 3.0f, 3.0f, 3.0f}));
  EXPECT_NEAR(y[0].item<float>(), 0, 1e-6);
  EXPECT_NEAR(y[1].item<float>(), 0, 1e-30);
  EXPECT_EQ(y[2].item<float>(), 600);
  EXPECT_TRUE(std::isnan(y[3].item<float>()));
}

TEST(Swiglu, RefusesAnOddLastDimensionAndNamesIt) {
  EXPECT_THAT([] { swiglu(at::ones({3, 7})); },
              ThrowsMessage<ConfigError>(HasSubstr("operator swiglu: gate_up is Float [3, 7]")));
}

}  // namespace
}  // namespace concord::ops::testing::of_swiglu
