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

struct Size {
  int64_t tokens, batch, heads, kv_heads, n, half;
};

Size draw_size(Draw& draw) {
  const int64_t half = draw.coin() ? 8 * draw.between(1, 4) : draw.size();
  const int64_t n = 2 * half + (draw.coin() ? 0 : 8 * draw.between(1, 2));
  return {draw.between(1, 30), draw.between(1, 4), draw.between(1, 5), draw.between(1, 3), n, half};
}

struct Inputs {
  Inputs(const Size& size, Draw& draw, c10::ScalarType type)
      : qkv(draw.normal({size.tokens, size.batch, (size.heads + 2 * size.kv_heads) * size.n}, type)),
        q_weight(draw.normal({size.n}, type)),
        k_weight(draw.normal({size.n}, type)) {
    const auto sums = type == at::kDouble ? type : at::kFloat;
    const Tensor angle = draw.normal({size.tokens, 1, size.half}, at::kDouble, 3);
    cos = angle.cos().to(sums);
    sin = angle.sin().to(sums);
  }
  Tensor qkv, q_weight, k_weight, cos, sin;
};

// Returns the relative rounding error between norm and rope.
double between(c10::ScalarType type) { return is_short(type) ? 2 * half_unit(type) : 0; }

Sample forward_sample(const Size& size, Draw& draw, c10::ScalarType type) {
  const Inputs in(size, draw, type);
  const auto slack = [=](const std::vector<c10::IValue>&, const std::vector<Tensor>& exact) {
    const double of_norm = (roundings_of_sum(size.n) / 2 + 12) * sum_unit(type), off = of_norm + between(type);
    return std::vector<Tensor>{off * pair_lengths(exact[0], size.half), off * pair_lengths(exact[1], size.half),
                               at::zeros_like(exact[2]), of_norm * exact[3]};
  };
  Sample made{{in.qkv, in.q_weight, in.k_weight, in.cos, in.sin, size.heads, size.kv_heads, 1e-6}, 0, {}, slack};
  made.ascend_slack = rotated_by_cann(type, size.half, 2);
  return made;
}

// With h = x rstd and u the gradient rotated back: dx = rstd (u w - h mean(u w h)), dweight = sum of u h over all
// heads. |of_u| is the relative error of u.
std::vector<Tensor> part_slack(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                               int64_t half, c10::ScalarType type, double of_u) {
  const Tensor u = pair_lengths(grad.to(at::kDouble), half), w = weight.to(at::kDouble).abs();
  const Tensor r = rstd.to(at::kDouble).unsqueeze(-1), h = x.to(at::kDouble).abs() * r;
  const double v = sum_unit(type);
  const int64_t n = x.size(-1), rows = x.numel() / n;
  const double of_dx = of_u + (roundings_of_sum(n) + 16) * v;
  const double of_sum = of_u + (roundings_of_sum(rows) + 8) * v;
  return {of_dx * r * (u * w + h * (u * w * h).mean(-1, true)), of_sum * (u * h).reshape({-1, n}).sum(0)};
}

// Gradients in the layout of attention: [batch, tokens, ...], viewed as [tokens, batch, ...].
Sample backward_sample(const Size& size, Draw& draw, c10::ScalarType type) {
  const Inputs in(size, draw, type);
  const auto grad = [&](int64_t heads) {
    return draw.normal({size.batch, size.tokens, heads, size.n}, type).transpose(0, 1);
  };
  const Tensor dq = grad(size.heads), dk = grad(size.kv_heads), dv = grad(size.kv_heads);
  const Tensor all = in.qkv.to(at::kDouble).unflatten(-1, {size.heads + 2 * size.kv_heads, -1});
  const Tensor turned = all.narrow(-2, 0, size.heads + size.kv_heads);
  const Tensor rstd = ((turned * turned).mean(-1) + 1e-6).rsqrt().to(in.cos.scalar_type());
  const auto slack_with = [=](const std::vector<c10::IValue>& a, double of_u) {
    const auto at = [&](size_t i) { return a[i].toTensor(); };
    const Tensor x = at(3).unflatten(-1, {size.heads + 2 * size.kv_heads, -1});
    const auto q =
        part_slack(at(0), x.narrow(-2, 0, size.heads), at(5), at(4).narrow(-1, 0, size.heads), size.half, type, of_u);
    const auto k = part_slack(at(1), x.narrow(-2, size.heads, size.kv_heads), at(6),
                              at(4).narrow(-1, size.heads, size.kv_heads), size.half, type, of_u);
    const Tensor none = at::zeros_like(at(2), at::TensorOptions(at::kDouble));
    return std::vector<Tensor>{at::cat({q[0], k[0], none}, -2).flatten(-2), q[1], k[1]};
  };
  Sample made{{dq, dk, dv, in.qkv, rstd, in.q_weight, in.k_weight, in.cos, in.sin}};
  made.slack = [=](const std::vector<c10::IValue>& a, const std::vector<Tensor>&) {
    return slack_with(a, between(type));
  };
  made.ascend_slack = [=](const std::vector<c10::IValue>& a, const std::vector<Tensor>&) {
    return slack_with(a, unit_of_rotation_on_ascend(type));
  };
  return made;
}

const RegisterSamples kForward("concord::norm_rope_qkv", [](Draw& draw, c10::ScalarType type) {
  return forward_sample(draw_size(draw), draw, type);
});
const RegisterSamples kBackward("concord::norm_rope_qkv_backward", [](Draw& draw, c10::ScalarType type) {
  return backward_sample(draw_size(draw), draw, type);
});

// Head sizes of Qwen3-MoE and others: as wide as 8, 16 and 32 threads of each type hold, one with a quarter rotated,
// one without vector loads.
std::vector<SampleMaker> for_sizes(Sample (*make)(const Size&, Draw&, c10::ScalarType)) {
  const std::vector<Size> sizes = {{65, 2, 4, 2, 16, 8},    {1024, 4, 16, 4, 128, 64}, {2049, 1, 4, 2, 64, 32},
                                   {129, 2, 8, 1, 128, 16}, {33, 3, 3, 1, 256, 128},   {65, 1, 2, 1, 512, 256},
                                   {65, 1, 5, 2, 32, 16},   {77, 3, 3, 1, 10, 5}};
  std::vector<SampleMaker> made;
  for (const Size& size : sizes) {
    made.push_back([=](Draw& draw, c10::ScalarType type) { return make(size, draw, type); });
  }
  return made;
}
const RegisterRealSizes kRealForward("concord::norm_rope_qkv", for_sizes(forward_sample));
const RegisterRealSizes kRealBackward("concord::norm_rope_qkv_backward", for_sizes(backward_sample));

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
  const Size size{5, 2, 3, 2, 16, 6};
  const Inputs in(size, draw, GetParam());
  for (const Tensor& leaf : {in.qkv, in.q_weight, in.k_weight}) leaf.requires_grad_(true);
  const auto parts = in.qkv.unflatten(-1, {7, 16}).split_with_sizes({3, 2, 2}, -2);
  const Heads right{rope(rms_norm(parts[0], in.q_weight, 1e-5), in.cos, in.sin),
                    rope(rms_norm(parts[1], in.k_weight, 1e-5), in.cos, in.sin), parts[2]};
  const Heads made = norm_rope_qkv(in.qkv, {in.q_weight, in.k_weight, 1e-5}, in.cos, in.sin, 3, 2);
  EXPECT_TRUE(at::equal(made.q, right.q) && at::equal(made.k, right.k) && at::equal(made.v, right.v));
  std::vector<Tensor> weights;
  for (const Tensor& each : {right.q, right.k, right.v}) weights.push_back(draw.normal(each.sizes().vec(), GetParam()));
  const std::vector<Tensor> leaves = {in.qkv, in.q_weight, in.k_weight};
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
