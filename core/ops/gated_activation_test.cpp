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
