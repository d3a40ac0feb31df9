#include "core/ops/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>
#include <memory>

#include "core/base/config_error.h"
#include "core/ops/testing/samples.h"

namespace concord::ops::testing::of_linear {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Returns the error bound of a product: sums of n terms have n roundings of the largest term.
double size_of(int64_t terms, const at::Tensor& a, const at::Tensor& b) {
  return static_cast<double>(terms) * largest(a) * largest(b);
}

struct Drawn {
  Drawn(Draw& draw, c10::ScalarType type)
      : in(draw.size()),
        out(draw.size()),
        rows(draw.size()),
        x(draw.normal({2, rows, in}, type)),
        weight(draw.normal({out, in}, type)),
        grad(draw.normal({2, rows, out}, type)) {}
  int64_t in, out, rows;
  at::Tensor x, weight, grad;
};

const RegisterSamples kForward("concord::linear", [](Draw& draw, c10::ScalarType type) {
  const Drawn d(draw, type);
  const c10::IValue bias = draw.coin() ? c10::IValue(draw.normal({d.out}, type)) : c10::IValue();
  // 16-bit results of a GEMM may be rounded once more before the bias is added: 2^-8 of them, while a rounding counts
  // as 4 * 2^-24.
  const bool short_type = type == at::kBFloat16 || type == at::kHalf;
  const double product = largest(at::matmul(d.x.to(at::kDouble), d.weight.to(at::kDouble).t()));
  return Sample{{d.x, d.weight, bias}, 4, {size_of(d.in, d.x, d.weight) + (short_type ? 16384 * (1 + product) : 0)}};
});
const RegisterSamples kInput("concord::linear_input_grad", [](Draw& draw, c10::ScalarType type) {
  const Drawn d(draw, type);
  return Sample{{d.grad, d.weight}, 4, {size_of(d.out, d.grad, d.weight)}};
});
const RegisterSamples kBias("concord::linear_bias_grad", [](Draw& draw, c10::ScalarType type) {
  const Drawn d(draw, type);
  return Sample{{d.grad}, 4, {static_cast<double>(2 * d.rows) * largest(d.grad)}};
});
const RegisterSamples kWeight("concord::linear_weight_grad", [](Draw& draw, c10::ScalarType type) {
  const Drawn d(draw, type);
  return Sample{{d.grad, d.x}, 4, {size_of(2 * d.rows, d.grad, d.x)}};
});
const RegisterSamples kAdd("concord::linear_weight_grad_", [](Draw& draw, c10::ScalarType type) {
  const Drawn d(draw, type);
  const at::Tensor main = draw.normal({d.out, d.in}, type == at::kDouble ? type : at::kFloat);
  return Sample{{main, d.grad, d.x}, 4, {size_of(2 * d.rows, d.grad, d.x) + largest(main)}};
});

const RegisterSamples kSet("concord::linear_weight_grad_set_", [](Draw& draw, c10::ScalarType type) {
  const Drawn d(draw, type);
  const at::Tensor main = draw.normal({d.out, d.in}, type == at::kDouble ? type : at::kFloat);
  main[0][0] = std::numeric_limits<double>::quiet_NaN();
  return Sample{{main, d.grad, d.x}, 4, {size_of(2 * d.rows, d.grad, d.x)}};
});

struct Layer {
  explicit Layer(c10::ScalarType type) {
    Draw draw(11);
    x = draw.normal({3, 5, 7}, type).requires_grad_(true);
    weight = draw.normal({4, 7}, type).requires_grad_(true);
    bias = draw.normal({4}, type).requires_grad_(true);
    grad = draw.normal({3, 5, 4}, type);
    main = draw.normal({4, 7}, type == at::kDouble ? type : at::kFloat);
  }
  at::Tensor x, weight, bias, grad, main;
};

TEST(GradSink, TheFirstAdditionReplacesWhatIsStale) {
  Layer ours(at::kDouble), twice(at::kDouble);
  twice.main.zero_();
  const GradSink sink{twice.main};
  ours.main.fill_(std::numeric_limits<double>::quiet_NaN());
  GradSink stale{ours.main};
  stale.is_stale = std::make_shared<bool>(true);
  for (int i = 0; i < 2; ++i) {
    linear(twice.x, twice.weight, twice.bias, &sink).backward(twice.grad);
    linear(ours.x, ours.weight, ours.bias, &stale).backward(ours.grad);
  }
  EXPECT_EQ(largest(ours.main - twice.main), 0);
  EXPECT_FALSE(*stale.is_stale);
  *stale.is_stale = true;
  stale.add([](at::Tensor& main) { main.add_(1); });  // without a replacement the buffer is cleared
  EXPECT_EQ(largest(ours.main - 1), 0);
}

TEST(Linear, AddsItsWeightGradientStraightToTheMainGradient) {
  Layer plain(at::kDouble);
  linear(plain.x, plain.weight, plain.bias).backward(plain.grad);
  Layer ours(at::kDouble);
  const at::Tensor before = ours.main.clone();
  int added = 0;
  const GradSink sink{ours.main, [&] { ++added; }};
  linear(ours.x, ours.weight, ours.bias, &sink).backward(ours.grad);
  linear(ours.x, ours.weight, ours.bias, &sink).backward(ours.grad);
  EXPECT_EQ(added, 2);
  EXPECT_FALSE(ours.weight.grad().defined());
  EXPECT_LE(largest(ours.main - before - 2 * plain.weight.grad()), 1e-12);
  EXPECT_LE(largest(ours.x.grad() - 2 * plain.x.grad()), 1e-12);
  EXPECT_LE(largest(ours.bias.grad() - 2 * plain.bias.grad()), 1e-12);
}

TEST(Linear, PutsWeightGradientsOffAndMakesThemInTheirOrder) {
  Layer now(at::kFloat);
  const GradSink at_once{now.main};
  linear(now.x, now.weight, now.bias, &at_once).backward(now.grad);
  Layer ours(at::kFloat);
  const at::Tensor before = ours.main.clone();
  DeferredWgrads later;
  int added = 0;
  const GradSink sink{ours.main, [&] { ++added; }, &later};
  linear(ours.x, ours.weight, ours.bias, &sink).backward(ours.grad);
  EXPECT_TRUE(at::equal(ours.main, before));
  EXPECT_TRUE(at::equal(ours.x.grad(), now.x.grad()));
  EXPECT_EQ(later.size(), 1u);
  EXPECT_EQ(added, 0);
  later.run_all();
  EXPECT_EQ(added, 1);
  EXPECT_EQ(later.size(), 0u);
  EXPECT_TRUE(at::equal(ours.main, now.main));  // bitwise identical
}

// 4096 products of 1 and 2^-9 added to 1: in bf16 the sum would stay at 1.
TEST(Linear, LosesNothingOfABf16GradientInTheMainGradient) {
  const at::Tensor x = at::ones({4096, 1}, at::kBFloat16) / 512;
  const at::Tensor weight = at::ones({1, 1}, at::kBFloat16).requires_grad_(true);
  const GradSink sink{at::ones({1, 1})};
  linear(x, weight, {}, &sink).backward(at::ones({4096, 1}, at::kBFloat16));
  EXPECT_EQ(sink.main.item<float>(), 9);
}

// A weight that the host converts in parts (linear.cpp), the last of which is smaller. Elements are -1, 0 and 1: sums
// are exact in fp32, and rounded once.
TEST(Linear, OfALargeWeightIn16BitsIsTheExactSumRoundedOnce) {
  const auto values = [](at::IntArrayRef shape, int64_t step) {
    const at::Tensor places = at::arange(c10::multiply_integers(shape), at::kLong);
    return places.mul(step).remainder(1009).remainder(3).sub(1).to(at::kDouble).view(shape);
  };
  const at::Tensor x = values({2, 12, 96}, 37), weight = values({301, 96}, 101), bias = values({301}, 59);
  const at::Tensor grad = values({2, 12, 301}, 71);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kFloat}) {
    SCOPED_TRACE(c10::toString(type));
    const at::Tensor own_x = x.to(type).requires_grad_(true), own_weight = weight.to(type).requires_grad_(true);
    const at::Tensor y = linear(own_x, own_weight, bias.to(type));
    EXPECT_TRUE(at::equal(y, (at::matmul(x, weight.t()) + bias).to(type)));
    y.backward(grad.to(type));
    EXPECT_TRUE(at::equal(own_x.grad(), at::matmul(grad, weight).to(type)));
    EXPECT_TRUE(at::equal(own_weight.grad(), at::matmul(grad.view({24, 301}).t(), x.view({24, 96})).to(type)));
  }
}

TEST(Linear, RefusesSizesThatDoNotFitAndNamesThem) {
  EXPECT_THAT([] { linear(at::ones({3, 8}), at::ones({4, 7})); },
              ThrowsMessage<ConfigError>(HasSubstr("operator linear: x is Float [3, 8], weight Float [4, 7]")));
  const GradSink sink{at::ones({7, 4})};
  EXPECT_THAT([&] { linear(at::ones({3, 7}), at::ones({4, 7}), {}, &sink); },
              ThrowsMessage<ConfigError>(HasSubstr("the main gradient is Float [7, 4]")));
}

}  // namespace
}  // namespace concord::ops::testing::of_linear
