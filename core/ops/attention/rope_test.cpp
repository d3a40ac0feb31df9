#include "core/ops/attention/rope.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "core/base/config_error.h"
#include "core/ops/testing/samples.h"

namespace concord::ops::testing::of_rope {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// [B, S, heads, n], [S, B, heads, n] with angles by S alone, or packed [T, heads, n]; some rotate only a part of a
// head.
Sample draw_rope(Draw& draw, c10::ScalarType type) {
  const auto angles = type == at::kDouble ? type : at::kFloat;
  const int64_t half = draw.size();
  const int64_t dim = 2 * half + (draw.coin() ? draw.between(1, 4) : 0);
  const int64_t first = draw.between(1, 4);
  const int64_t second = draw.size();
  std::vector<int64_t> sizes = {first, second, draw.between(1, 4), dim};
  std::vector<std::vector<int64_t>> leading = {{second, half}, {first, second, half}, {first, 1, half}};
  if (draw.coin()) {
    sizes.erase(sizes.begin());
    leading = {{second, half}};
  }
  const auto& shape = leading[static_cast<size_t>(draw.between(0, static_cast<int64_t>(leading.size()) - 1))];
  const at::Tensor angle = draw.normal(shape, at::kDouble, 3);
  at::Tensor x = draw.normal(sizes, type);
  if (draw.coin()) x = x.transpose(0, 1).contiguous().transpose(0, 1);
  Sample made{{x, angle.cos().to(angles), angle.sin().to(angles), draw.coin()}, 16, {2 * largest(x)}};
  made.ascend_slack = rotated_by_cann(type, half);
  return made;
}

const RegisterSamples kRope("concord::rope", draw_rope);

struct PackedHeads {
  PackedHeads(Draw& draw, c10::ScalarType type)
      : heads(draw.between(1, 5)),
        kv_heads(draw.between(1, 3)),
        half(draw.coin() ? 8 * draw.between(1, 4) : draw.size()),
        dim(2 * half + (draw.coin() ? 0 : 8 * draw.between(1, 2))),
        leading{draw.between(1, 4), draw.between(1, 40)} {
    const auto angles = type == at::kDouble ? type : at::kFloat;
    const at::Tensor angle = draw.normal({leading[0], draw.coin() ? 1 : leading[1], half}, at::kDouble, 3);
    cos = angle.cos().to(angles);
    sin = angle.sin().to(angles);
  }
  std::vector<int64_t> with(std::vector<int64_t> last) const {
    std::vector<int64_t> sizes = leading;
    sizes.insert(sizes.end(), last.begin(), last.end());
    return sizes;
  }
  int64_t heads, kv_heads, half, dim;
  std::vector<int64_t> leading;
  at::Tensor cos, sin;
};

const RegisterSamples kRopeQkv("concord::rope_qkv", [](Draw& draw, c10::ScalarType type) {
  const PackedHeads packed(draw, type);
  const at::Tensor qkv = draw.normal(packed.with({(packed.heads + 2 * packed.kv_heads) * packed.dim}), type);
  Sample made{
      {qkv, packed.cos, packed.sin, packed.heads, packed.kv_heads}, 16, std::vector<double>(3, 2 * largest(qkv))};
  made.ascend_slack = rotated_by_cann(type, packed.half, 2);
  return made;
});

const RegisterSamples kRopeQkvBackward("concord::rope_qkv_backward", [](Draw& draw, c10::ScalarType type) {
  const PackedHeads packed(draw, type);
  const auto some = [&](int64_t heads) {
    at::Tensor x = draw.normal(packed.with({heads, packed.dim}), type);
    return draw.coin() ? x : x.transpose(0, 1).contiguous().transpose(0, 1);
  };
  const at::Tensor dq = some(packed.heads), dk = some(packed.kv_heads), dv = some(packed.kv_heads);
  Sample made{{dq, dk, dv, packed.cos, packed.sin}, 16, {2 * std::max(largest(dq), largest(dk))}};
  made.ascend_slack = packed_rotated_by_cann(type, packed.half, packed.dim, packed.heads + packed.kv_heads);
  return made;
});

// The harness differentiates the first result only, the queries.
TEST(RopeQkv, IsRopeOfItsPartsAlsoInItsGradient) {
  Draw draw(4);
  const PackedHeads packed(draw, at::kDouble);
  const int64_t q = packed.heads, k = packed.kv_heads;
  const at::Tensor qkv = draw.normal(packed.with({(q + 2 * k) * packed.dim}), at::kDouble).requires_grad_(true);
  const at::Tensor all = qkv.unflatten(-1, {q + 2 * k, -1});
  const Heads expected{rope(all.narrow(-2, 0, q), packed.cos, packed.sin),
                       rope(all.narrow(-2, q, k), packed.cos, packed.sin), all.narrow(-2, q + k, k)};
  const Heads made = rope_qkv(qkv, packed.cos, packed.sin, q, k);
  const at::Tensor of_q = draw.normal(made.q.sizes().vec(), at::kDouble);
  const at::Tensor of_k = draw.normal(made.k.sizes().vec(), at::kDouble),
                   of_v = draw.normal(made.v.sizes().vec(), at::kDouble);
  const auto gradient = [&](const Heads& h) {
    return torch::autograd::grad({(h.q * of_q).sum() + (h.k * of_k).sum() + (h.v * of_v).sum()}, {qkv}).at(0);
  };
  EXPECT_EQ(largest(made.q - expected.q) + largest(made.k - expected.k) + largest(made.v - expected.v), 0);
  EXPECT_LE(largest(gradient(made) - gradient(expected)), 1e-14);
}

TEST(RopeQkv, RefusesHeadsThatDoNotDivide) {
  EXPECT_THAT([] { rope_qkv(at::ones({7, 1, 30}), at::ones({7, 1, 4}), at::ones({7, 1, 4}), 2, 1); },
              ThrowsMessage<ConfigError>(HasSubstr("a multiple of 2 query and 2 x 1 key and value heads")));
}

TEST(Rope, KeepsLengthsOfPairs) {
  Draw draw(5);
  const at::Tensor x = draw.normal({2, 7, 3, 16}, at::kDouble);
  const at::Tensor angle = draw.normal({7, 8}, at::kDouble);
  const at::Tensor y = rope(x, angle.cos(), angle.sin());
  const auto squares = [](const at::Tensor& t) {
    return t.narrow(-1, 0, 8) * t.narrow(-1, 0, 8) + t.narrow(-1, 8, 8) * t.narrow(-1, 8, 8);
  };
  EXPECT_LE(largest(squares(x) - squares(y)), 1e-13);
  EXPECT_GT(largest(x - y), 0.1);
}

TEST(Rope, RefusesAnglesThatDoNotFitAndNamesTheSizes) {
  EXPECT_THAT([] { rope(at::ones({2, 7, 3, 16}), at::ones({6, 8}), at::ones({6, 8})); },
              ThrowsMessage<ConfigError>(HasSubstr("cos is Float [6, 8] for x of Float [2, 7, 3, 16]")));
  EXPECT_THAT([] { rope(at::ones({7, 3, 16}), at::ones({7, 9}), at::ones({7, 9})); },
              ThrowsMessage<ConfigError>(HasSubstr("at most half the head size")));
}

}  // namespace
}  // namespace concord::ops::testing::of_rope
