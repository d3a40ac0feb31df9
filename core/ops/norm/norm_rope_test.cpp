#include "core/ops/norm/norm_rope.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include "core/base/config_error.h"
#include "core/ops/norm/rms_norm.h"
#include "core/ops/testing/samples.h"

namespace concord::ops::testing::of_norm_rope {
namespace {

using at::Tensor;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Queries, keys and values, weighed; and the gradients of qkv and of both norms.
std::vector<Tensor> gradients(const Heads& made, const std::vector<Tensor>& weights,
                              const std::vector<Tensor>& inputs) {
  const Tensor sum = (made.q * weights[0]).sum() + (made.k * weights[1]).sum() + (made.v * weights[2]).sum();
  const auto found = torch::autograd::grad({sum}, inputs);
  return {found.begin(), found.end()};
}

class NormRopeQkv : public ::testing::TestWithParam<c10::ScalarType> {};

// The harness differentiates the first result only, the queries, and allows for rounding.
TEST_P(NormRopeQkv, HasTheBitsOfNormAndRopeOfItsPartsAlsoInItsGradients) {
  Draw draw(7);
  const auto sums = GetParam() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor qkv = draw.normal({5, 2, 7 * 16}, GetParam()).requires_grad_(true);
  const Tensor q_weight = draw.normal({16}, GetParam()).requires_grad_(true),
               k_weight = draw.normal({16}, GetParam()).requires_grad_(true);
  const Tensor angle = draw.normal({5, 1, 6}, at::kDouble, 3), cos = angle.cos().to(sums), sin = angle.sin().to(sums);
  const auto parts = qkv.unflatten(-1, {7, 16}).split_with_sizes({3, 2, 2}, -2);
  const Heads right{rope(rms_norm(parts[0], q_weight, 1e-5), cos, sin),
                    rope(rms_norm(parts[1], k_weight, 1e-5), cos, sin), parts[2]};
  const Heads made = norm_rope_qkv(qkv, {q_weight, k_weight, 1e-5}, cos, sin, 3, 2);
  EXPECT_TRUE(at::equal(made.q, right.q) && at::equal(made.k, right.k) && at::equal(made.v, right.v));
  std::vector<Tensor> weights;
  for (const Tensor& each : {right.q, right.k, right.v}) weights.push_back(draw.normal(each.sizes().vec(), GetParam()));
  const std::vector<Tensor> leaves = {qkv, q_weight, k_weight};
  const auto got = gradients(made, weights, leaves), expected = gradients(right, weights, leaves);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(got[i], expected[i])) << "gradient " << i;
}

INSTANTIATE_TEST_SUITE_P(Types, NormRopeQkv, ::testing::Values(at::kFloat, at::kDouble, at::kBFloat16),
                         [](const auto& each) { return std::string(c10::toString(each.param)); });

TEST(NormRopeQkvArguments, RefusesANormOfAnotherSizeAndHeadsThatDoNotDivide) {
  const Tensor angles = at::ones({7, 1, 4});
  EXPECT_THAT([&] { norm_rope_qkv(at::ones({7, 1, 32}), {at::ones({8}), at::ones({7}), 0}, angles, angles, 2, 1); },
              ThrowsMessage<ConfigError>(HasSubstr("a norm's weight is Float [7] for qkv of Float [7, 1, 32]; must be "
                                                   "[8]")));
  EXPECT_THAT([&] { norm_rope_qkv(at::ones({7, 1, 30}), {at::ones({8}), at::ones({8}), 0}, angles, angles, 2, 1); },
              ThrowsMessage<ConfigError>(HasSubstr("norm_rope_qkv: qkv is Float [7, 1, 30]; the last dimension must be "
                                                   "a multiple of 2 query and 2 x 1 key and value heads")));
}

}  // namespace
}  // namespace concord::ops::testing::of_norm_rope
