#include "core/ops/rope.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>

#include "core/config_error.h"
#include "core/ops/testing/samples.h"

namespace concord::ops::testing::of_rope {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// [B, S, heads, n], [S, B, heads, n] with angles by S alone, or packed [T, heads, n]; some turn a part of a head only.
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
  return {{x, angle.cos().to(angles), angle.sin().to(angles), draw.coin()}, 16, {2 * largest(x)}};
}

const RegisterSamples kRope("concord::rope", draw_rope);

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
