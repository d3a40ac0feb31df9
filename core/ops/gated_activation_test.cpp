#include "core/ops/gated_activation.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include "core/base/config_error.h"
#include "core/ops/testing/samples.h"

namespace concord::ops::testing::of_gated_activation {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Kind = GatedActivation::Kind;

// The formulas of transformers.
at::Tensor written_out(const at::Tensor& both, const GatedActivation& activation) {
  if (activation.kind == Kind::gelu_tanh) return at::gelu(both.chunk(2, -1)[0], "tanh") * both.chunk(2, -1)[1];
  const at::Tensor gate = both.slice(-1, 0, std::nullopt, 2).clamp_max(activation.limit);
  const at::Tensor up = both.slice(-1, 1, std::nullopt, 2).clamp(-activation.limit, activation.limit);
  return (up + 1) * (gate * (gate * activation.alpha).sigmoid());
}

// torch_npu rounds gelu to the type before its products.
Sample rounded_on_ascend(Sample made, c10::ScalarType type) {
  made.ascend_slack = [type](const std::vector<c10::IValue>&, const std::vector<at::Tensor>& exact) {
    return std::vector{half_unit(type) * exact[0].abs()};
  };
  return made;
}

// For large negative gates 1 + tanh cancels: its rounding errors are those of 1.
Sample draw_geglu(Draw& draw, c10::ScalarType type) {
  const at::Tensor x = draw.normal({draw.size(), draw.between(1, 3), 2 * draw.size()}, type, draw.coin() ? 1 : 3);
  return rounded_on_ascend({{x}, 16, {largest(x) * largest(x)}}, type);
}

// The slope is x (1 - tanh^2) (1 + 3 c x^2) sqrt(2 / pi) / 2 and more, of which 1 - tanh^2 cancels.
Sample draw_geglu_backward(Draw& draw, c10::ScalarType type) {
  const at::Tensor x = draw.normal({draw.size(), 2 * draw.size()}, type, draw.coin() ? 1 : 3);
  const at::Tensor grad = draw.normal({x.size(0), x.size(1) / 2}, type);
  const double most = largest(x), slope = 1 + most * (1 + 3 * 0.044715 * most * most);
  return rounded_on_ascend({{grad, x}, 16, {largest(grad) * most * slope}}, type);
}

const RegisterSamples kForward("concord::geglu", draw_geglu);
const RegisterSamples kBackward("concord::geglu_backward", draw_geglu_backward);
const RegisterRealSizes kRealForward("concord::geglu", {draw_geglu});
const RegisterRealSizes kRealBackward("concord::geglu_backward", {draw_geglu_backward});

TEST(GatedActivation, IsThatOfTransformersWithItsGradient) {
  for (const GatedActivation& each :
       {GatedActivation{.kind = Kind::gelu_tanh}, GatedActivation{.kind = Kind::clamped, .alpha = 1.3, .limit = 2}}) {
    Draw draw(1);
    const at::Tensor x = draw.normal({5, 7, 12}, at::kDouble, 2).requires_grad_(true);
    const at::Tensor grad = draw.normal({5, 7, 6}, at::kDouble);
    const at::Tensor got = gated_activation(x, each), expected = written_out(x, each);
    EXPECT_LE(largest(got - expected), 1e-14);
    const auto slope = [&](const at::Tensor& y) { return torch::autograd::grad({y}, {x}, {grad})[0]; };
    EXPECT_LE(largest(slope(got) - slope(expected)), 1e-14);
    const at::Tensor rounded = gated_activation(x.to(at::kBFloat16), each);
    const at::Tensor exact = written_out(x.to(at::kBFloat16).to(at::kDouble), each);
    // Rounded once; if 1 + tanh cancels, fp32 leaves 2^-24 of the factors, which are below 50.
    const at::Tensor bound = exact.abs() / 256 + 50.0 / (1 << 24);
    EXPECT_LE(((rounded.to(at::kDouble) - exact).abs() / bound).max().item<double>(), 1);
  }
}

TEST(GatedActivation, RefusesAnOddLastDimensionAndNamesIt) {
  EXPECT_THAT([] { gated_activation(at::ones({3, 7}), {.kind = Kind::gelu_tanh}); },
              ThrowsMessage<ConfigError>(HasSubstr("gate_up is Float [3, 7]")));
}

TEST(SoftCap, IsTheTanhWithItsGradientAlsoIfTheResultIsOverwritten) {
  Draw draw(2);
  const at::Tensor x = draw.normal({4, 9}, at::kDouble, 3).requires_grad_(true);
  const at::Tensor got = soft_cap(x, 2), expected = (x / 2).tanh() * 2;
  EXPECT_LE(largest(got - expected), 1e-15);
  got.detach().zero_();
  const at::Tensor grad = draw.normal({4, 9}, at::kDouble);
  EXPECT_LE(largest(torch::autograd::grad({got}, {x}, {grad})[0] - torch::autograd::grad({expected}, {x}, {grad})[0]),
            1e-15);
}

}  // namespace
}  // namespace concord::ops::testing::of_gated_activation
