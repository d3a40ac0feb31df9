#include "core/ops/moe/grouped_linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <algorithm>

#include "core/base/config_error.h"
#include "core/ops/linear.h"
#include "core/ops/testing/samples.h"

namespace concord::ops::testing::of_grouped_linear {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Returns the ends of |groups| of |rows| rows, split at random: often some are empty, and sometimes one has all rows.
at::Tensor draw_ends(Draw& draw, int64_t groups, int64_t rows) {
  std::vector<int64_t> ends;
  for (int64_t i = 1; i < groups; ++i) ends.push_back(draw.between(0, rows));
  if (groups > 1 && draw.between(0, 5) == 0) ends.assign(ends.size(), draw.coin() ? rows : 0);
  std::sort(ends.begin(), ends.end());
  ends.push_back(rows);
  return at::tensor(ends, at::kLong);
}

struct Drawn {
  Drawn(Draw& draw, c10::ScalarType type)
      : in(draw.size()),
        out(draw.size()),
        rows(draw.size()),
        groups(draw.between(1, 9)),
        x(draw.normal({rows, in}, type)),
        weight(draw.normal({groups, out, in}, type)),
        grad(draw.normal({rows, out}, type)),
        ends(draw_ends(draw, groups, rows)) {}
  int64_t in, out, rows, groups;
  at::Tensor x, weight, grad, ends;
};

// Returns the error bound of a product: sums of n terms have n roundings of the largest term.
double size_of(int64_t terms, const at::Tensor& a, const at::Tensor& b) {
  return static_cast<double>(terms) * largest(a) * largest(b);
}

const RegisterSamples kForward("concord::grouped_linear", [](Draw& draw, c10::ScalarType type) {
  const Drawn d(draw, type);
  return Sample{{d.x, d.weight, d.ends}, 4, {size_of(d.in, d.x, d.weight)}};
});
const RegisterSamples kInput("concord::grouped_linear_input_grad", [](Draw& draw, c10::ScalarType type) {
  const Drawn d(draw, type);
  return Sample{{d.grad, d.weight, d.ends}, 4, {size_of(d.out, d.grad, d.weight)}};
});
const RegisterSamples kWeight("concord::grouped_linear_weight_grad", [](Draw& draw, c10::ScalarType type) {
  const Drawn d(draw, type);
  return Sample{{d.grad, d.x, d.ends}, 4, {size_of(d.rows, d.grad, d.x)}};
});
Sample draw_main_grad(Draw& draw, c10::ScalarType type) {
  const Drawn d(draw, type);
  const at::Tensor main = draw.normal({d.groups, d.out, d.in}, type == at::kDouble ? type : at::kFloat);
  return Sample{{main, d.grad, d.x, d.ends}, 4, {size_of(d.rows, d.grad, d.x) + largest(main)}};
}
const RegisterSamples kAdd("concord::grouped_linear_weight_grad_", draw_main_grad);
const RegisterSamples kSet("concord::grouped_linear_weight_grad_set_", draw_main_grad);

// Three groups, the second of which is empty.
struct Layer {
  explicit Layer(c10::ScalarType type) {
    Draw draw(11);
    x = draw.normal({5, 7}, type).requires_grad_(true);
    weight = draw.normal({3, 4, 7}, type).requires_grad_(true);
    grad = draw.normal({5, 4}, type);
    main = draw.normal({3, 4, 7}, type == at::kDouble ? type : at::kFloat);
    ends = at::tensor({2, 2, 5}, at::kLong);
  }
  at::Tensor x, weight, grad, main, ends;
};

TEST(GroupedLinear, IsALinearLayerForEachGroupOfRows) {
  const Layer layer(at::kDouble);
  const at::Tensor y = grouped_linear(layer.x, layer.weight, layer.ends);
  const at::Tensor expected =
      at::cat({linear(layer.x.narrow(0, 0, 2), layer.weight[0]), linear(layer.x.narrow(0, 2, 3), layer.weight[2])});
  EXPECT_LE(largest(y - expected), 1e-14);
}

TEST(GroupedLinear, AddsTheWeightGradientsOfAllGroupsStraightToTheMainGradient) {
  Layer plain(at::kDouble);
  grouped_linear(plain.x, plain.weight, plain.ends).backward(plain.grad);
  EXPECT_EQ(largest(plain.weight.grad()[1]), 0);  // the empty group
  Layer ours(at::kDouble);
  const at::Tensor before = ours.main.clone();
  int added = 0;
  const GradSink sink{ours.main, [&] { ++added; }};
  grouped_linear(ours.x, ours.weight, ours.ends, &sink).backward(ours.grad);
  grouped_linear(ours.x, ours.weight, ours.ends, &sink).backward(ours.grad);
  EXPECT_EQ(added, 2);
  EXPECT_FALSE(ours.weight.grad().defined());
  EXPECT_TRUE(at::equal(ours.main[1], before[1]));
  EXPECT_LE(largest(ours.main - before - 2 * plain.weight.grad()), 1e-12);
  EXPECT_LE(largest(ours.x.grad() - 2 * plain.x.grad()), 1e-12);
}

TEST(GroupedLinear, PutsWeightGradientsOff) {
  Layer now(at::kFloat);
  const GradSink at_once{now.main};
  grouped_linear(now.x, now.weight, now.ends, &at_once).backward(now.grad);
  Layer ours(at::kFloat);
  const at::Tensor before = ours.main.clone();
  DeferredWgrads later;
  int added = 0;
  const GradSink sink{ours.main, [&] { ++added; }, &later};
  grouped_linear(ours.x, ours.weight, ours.ends, &sink).backward(ours.grad);
  EXPECT_TRUE(at::equal(ours.main, before));
  EXPECT_TRUE(at::equal(ours.x.grad(), now.x.grad()));
  EXPECT_EQ(added, 0);
  later.run_all();
  EXPECT_EQ(added, 1);
  EXPECT_TRUE(at::equal(ours.main, now.main));  // bitwise identical
}

// 4096 products of 1 and 2^-9 added to 1: in bf16 the sum would stay at 1.
TEST(GroupedLinear, LosesNothingOfABf16GradientInTheMainGradient) {
  const at::Tensor x = at::ones({4096, 1}, at::kBFloat16) / 512;
  const at::Tensor weight = at::ones({1, 1, 1}, at::kBFloat16).requires_grad_(true);
  const GradSink sink{at::ones({1, 1, 1})};
  grouped_linear(x, weight, at::tensor({4096}, at::kLong), &sink).backward(at::ones({4096, 1}, at::kBFloat16));
  EXPECT_EQ(sink.main.item<float>(), 9);
}

TEST(GroupedLinear, RefusesSizesThatDoNotFitAndNamesThem) {
  const at::Tensor x = at::ones({3, 7}), weight = at::ones({2, 4, 7});
  EXPECT_THAT([&] { grouped_linear(x, at::ones({2, 4, 8}), at::tensor({1, 3}, at::kLong)); },
              ThrowsMessage<ConfigError>(HasSubstr("x is Float [3, 7], weight Float [2, 4, 8], ends Long [2]")));
  EXPECT_THAT([&] { grouped_linear(x, weight, at::tensor({1, 2}, at::kLong)); },
              ThrowsMessage<ConfigError>(HasSubstr("groups of [1, 1] rows do not make up 3")));
  EXPECT_THAT([&] { grouped_linear(x, weight, at::tensor({4, 3}, at::kLong)); },
              ThrowsMessage<ConfigError>(HasSubstr("groups of [4, -1] rows")));
  const GradSink sink{at::ones({2, 7, 4})};
  EXPECT_THAT([&] { grouped_linear(x, weight, at::tensor({1, 3}, at::kLong), &sink); },
              ThrowsMessage<ConfigError>(HasSubstr("the main gradient is Float [2, 7, 4]")));
}

}  // namespace
}  // namespace concord::ops::testing::of_grouped_linear
