#include "core/ops/precision/fp8.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "core/base/config_error.h"
#include "core/ops/precision/fp8_layer.h"
#include "core/ops/swiglu.h"
#include "core/ops/testing/samples.h"

namespace concord::ops::testing::of_fp8 {
namespace {

using at::Tensor;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// ------------------------------------------------------------------------------------------------------------ samples

Tensor draw_matrix(Draw& draw, c10::ScalarType type) {
  return draw.normal({draw.size(), draw.size()}, type, draw.coin() ? 1 : 1e-4);
}

// Larger or smaller than the amax of the matrix: some numbers saturate, some become 0.
Tensor draw_amax(Draw& draw) { return draw.normal({1}, at::kFloat, draw.coin() ? 1 : 1e-4).abs(); }

int64_t draw_format(Draw& draw) { return draw.between(0, 1); }

const RegisterSamples kAmax("concord::fp8_amax_", [](Draw& draw, c10::ScalarType type) {
  return Sample{{draw_amax(draw), draw_matrix(draw, type).to(at::kFloat)}, 0};
});

// Every kernel writes the same bits: half a unit of 8-bit types is 0 in the harness.
const RegisterSamples kQuantise("concord::fp8_quantise", [](Draw& draw, c10::ScalarType type) {
  return Sample{{draw_matrix(draw, type), draw_amax(draw), c10::IValue(), draw_format(draw)}, 0};
});

const RegisterSamples kBlocks("concord::fp8_quantise_blocks", [](Draw& draw, c10::ScalarType type) {
  return Sample{{draw.normal({draw.between(1, 300), draw.between(1, 300)}, type, draw.coin() ? 1 : 1e-4), draw.coin()},
                0};
});

struct Operand {
  Tensor numbers, scales;
};

Operand draw_operand(Draw& draw, int64_t rows, int64_t columns, bool e5m2) {
  const Tensor x = draw.normal({rows, columns}, at::kFloat, e5m2 ? 30 : 10);  // products fit into fp16
  return {x.to(type_of(e5m2 ? Fp8Format::e5m2 : Fp8Format::e4m3)), draw.normal({1}, at::kFloat).abs() + 0.1};
}

const RegisterSamples kMatmul("concord::fp8_matmul", [](Draw& draw, c10::ScalarType type) {
  const int64_t m = draw.size(), n = draw.size(), k = draw.size();
  const Operand a = draw_operand(draw, m, k, draw.coin()), b = draw_operand(draw, n, k, false);
  const c10::IValue bias = draw.coin() ? c10::IValue(draw.normal({n}, type)) : c10::IValue();
  const double size = 16 * largest(a.numbers.to(at::kFloat)) * largest(b.numbers.to(at::kFloat)) * largest(a.scales) *
                      largest(b.scales) * std::sqrt(static_cast<double>(k));
  // Sums are in fp32 even if the model is in fp64.
  const double units = type == at::kDouble ? std::ldexp(1.0, 29) : 1;
  return Sample{{a.numbers, a.scales, b.numbers, b.scales, bias, type, draw.coin()}, 4 * units, {size}};
});

const RegisterSamples kMatmulInto("concord::fp8_matmul_", [](Draw& draw, c10::ScalarType type) {
  const int64_t m = draw.size(), n = draw.size(), k = draw.size();
  const Operand a = draw_operand(draw, m, k, draw.coin()), b = draw_operand(draw, n, k, false);
  const double size = 16 * largest(a.numbers.to(at::kFloat)) * largest(b.numbers.to(at::kFloat)) * largest(a.scales) *
                      largest(b.scales) * std::sqrt(static_cast<double>(k));
  const double units = type == at::kDouble ? std::ldexp(1.0, 29) : 1;
  return Sample{
      {draw.normal({m, n}, at::kFloat), a.numbers, a.scales, b.numbers, b.scales, draw.coin()}, 4 * units, {size}};
});

// The intermediate result of swiglu is rounded to the type of its operands and may differ by one ulp from the exact
// value. The FP8 number may then be an adjacent one, 1/8 or 1/4 away, or the smallest one instead of 0.
Sample::Slack a_neighbour(int64_t format) {
  return [format](const std::vector<c10::IValue>&, const std::vector<Tensor>& exact) {
    const double step = format == 0 ? 0.125 : 0.25, smallest = format == 0 ? std::ldexp(1, -9) : std::ldexp(1, -16);
    const auto near = [&](const Tensor& x) { return x.to(at::kDouble).abs() * step * 1.01 + smallest; };
    return std::vector<Tensor>{near(exact[0]), near(exact[1]), at::zeros({1}, at::kDouble)};
  };
}

const RegisterSamples kSwiglu("concord::fp8_swiglu", [](Draw& draw, c10::ScalarType type) {
  const Tensor gate_up = draw.normal({draw.size(), 2 * draw.size()}, type);
  const int64_t format = draw_format(draw);
  return Sample{{gate_up, draw_amax(draw), c10::IValue(), format}, 0, {}, a_neighbour(format)};
});

const RegisterSamples kSwigluBackward("concord::fp8_swiglu_backward", [](Draw& draw, c10::ScalarType type) {
  const Tensor gate_up = draw.normal({draw.size(), 2 * draw.size()}, type);
  const Tensor grad = draw.normal({gate_up.size(0), gate_up.size(1) / 2}, type);
  const int64_t format = draw_format(draw);
  return Sample{{grad, gate_up, draw_amax(draw), c10::IValue(), format}, 0, {}, a_neighbour(format)};
});

// -------------------------------------------------------------------------------------------------------------- tests

// Returns all non-negative numbers of a format in ascending order, from the definition, not from libtorch.
std::vector<double> numbers_of(int fraction_bits, int bias, double most) {
  std::vector<double> all;
  const int steps = 1 << fraction_bits;
  for (int exponent = 0; exponent < 32; ++exponent) {
    for (int fraction = 0; fraction < steps; ++fraction) {
      const double value = exponent == 0 ? std::ldexp(fraction, 1 - bias - fraction_bits)
                                         : std::ldexp(steps + fraction, exponent - bias - fraction_bits);
      if (value <= most) all.push_back(value);
    }
  }
  return all;
}

// Returns the nearest number; ties go to the even index, which is the even fraction.
double nearest(const std::vector<double>& numbers, double x) {
  const double size = std::abs(x);
  size_t best = 0;
  for (size_t i = 1; i < numbers.size(); ++i) {
    const double now = std::abs(numbers[i] - size), before = std::abs(numbers[best] - size);
    if (now < before || (now == before && i % 2 == 0)) best = i;
  }
  return std::copysign(numbers[best], x);
}

TEST(Fp8Quantise, RoundsToTheNearestNumberOfTheFormat) {
  Draw draw(5);
  for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
    const bool short_fraction = format == Fp8Format::e5m2;
    const std::vector<double> numbers =
        short_fraction ? numbers_of(2, 15, largest_of(format)) : numbers_of(3, 7, largest_of(format));
    ASSERT_EQ(numbers.size(), short_fraction ? 124 : 127);
    // Numbers, the midpoints between them, and others; all exact in fp32. The scale is 1.
    std::vector<float> values;
    for (size_t i = 0; i + 1 < numbers.size(); ++i) {
      for (const double part : {0.0, 0.25, 0.5, 0.75}) {
        values.push_back(static_cast<float>(numbers[i] + part * (numbers[i + 1] - numbers[i])));
        values.push_back(-values.back());
      }
    }
    const Tensor x = at::tensor(values).unsqueeze(0);
    const Tensor amax = at::tensor({static_cast<float>(largest_of(format))});
    const Fp8Matrix got = fp8_quantise(x, {.format = format, .amax = amax});
    EXPECT_EQ(got.rowwise_scales.item<float>(), 1);
    for (size_t i = 0; i < values.size(); ++i) {
      const auto column = static_cast<int64_t>(i);
      EXPECT_EQ(got.rowwise[0][column].to(at::kDouble).item<double>(), nearest(numbers, values[i])) << values[i];
      EXPECT_EQ(got.columnwise[column][0].to(at::kDouble).item<double>(), nearest(numbers, values[i]));
    }
  }
}

TEST(Fp8Quantise, SaturatesWhatIsLargerThanTheAmaxAndKeepsNanVisible) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  const Tensor x = at::tensor({3.0F, -8.0F, kNan, kInf, 0.0F}).unsqueeze(0), seen = at::zeros({1});
  const Tensor got = fp8_quantise(x, {.amax = at::tensor({4.0F}), .seen = seen}).rowwise.to(at::kFloat)[0];
  EXPECT_EQ(got[0].item<float>(), 320);  // 448 / 4 * 3 = 336, half-way between 320 and 352
  EXPECT_EQ(got[1].item<float>(), -448);
  EXPECT_TRUE(std::isnan(got[2].item<float>()));
  EXPECT_TRUE(std::isnan(got[3].item<float>()));
  EXPECT_EQ(got[4].item<float>(), 0);
  EXPECT_TRUE(std::isnan(seen.item<float>()));
}

TEST(Fp8Quantise, TakesItsOwnAmaxWhereNoneIsGivenAndSaysWhatItSaw) {
  const Tensor x = at::tensor({1.0F, -7.0F, 2.0F, 0.5F}).view({2, 2}), seen = at::tensor({3.0F});
  const Fp8Matrix got = fp8_quantise(x, {.seen = seen});
  EXPECT_EQ(seen.item<float>(), 7);
  EXPECT_EQ(got.rowwise[0][1].to(at::kFloat).item<float>(), -448);
  EXPECT_FLOAT_EQ(got.rowwise_scales.item<float>(), 7.0F / 448);
  EXPECT_EQ(fp8_quantise(at::zeros({2, 2}), {}).rowwise_scales.item<float>(), 1);  // amax is 0
}

// By hand: a scale per 128 columns of a row, a power of two that uses more than half of the range.
TEST(Fp8Quantise, OfBlocksScalesEachByAPowerOfTwo) {
  Draw draw(9);
  const Tensor x = draw.normal({130, 257}, at::kFloat);
  for (const auto unit : {Fp8Scaling::Unit::row_blocks, Fp8Scaling::Unit::square_blocks}) {
    const int64_t lines = unit == Fp8Scaling::Unit::row_blocks ? 1 : kFp8Block;
    const Fp8Matrix got = fp8_quantise(x, {.unit = unit});
    for (int64_t i = 0; i < 130; i += 43) {
      for (int64_t j = 0; j < 257; j += 64) {
        const int64_t row = i / lines * lines, column = j / kFp8Block * kFp8Block;
        const Tensor block =
            x.narrow(0, row, std::min(lines, 130 - row)).narrow(1, column, std::min(kFp8Block, 257 - column));
        const double amax = largest(block), scale = got.rowwise_scales[i / lines][j / kFp8Block].item<double>();
        EXPECT_LE(amax / scale, 448);
        EXPECT_GT(amax / scale, 224);
        EXPECT_EQ(std::exp2(std::round(std::log2(scale))), scale);
        const double back = got.rowwise[i][j].to(at::kDouble).item<double>() * scale;
        EXPECT_NEAR(back, x[i][j].item<double>(), std::abs(back) / 16 + scale * std::ldexp(1, -10));
      }
    }
  }
}

TEST(Fp8Swiglu, IsThatOfTheTensorInBetween) {
  Draw draw(3);
  const Tensor gate_up = draw.normal({5, 12}, at::kBFloat16), grad = draw.normal({5, 6}, at::kBFloat16);
  const Tensor seen = at::zeros({1}), expected_seen = at::zeros({1}), amax = at::tensor({1.5F});
  const Fp8Matrix got = fp8_swiglu(gate_up, {.amax = amax, .seen = seen});
  const Fp8Matrix expected = fp8_quantise(swiglu(gate_up), {.amax = amax, .seen = expected_seen});
  EXPECT_TRUE(got.rowwise.to(at::kFloat).equal(expected.rowwise.to(at::kFloat)));
  EXPECT_TRUE(seen.equal(expected_seen));
  EXPECT_EQ(fp8_swiglu_backward(grad, gate_up, {.format = Fp8Format::e5m2}).rowwise.sizes(), gate_up.sizes());
}

// ------------------------------------------------------------------------------------------------------------- layers

// A layer with delayed scaling after some steps, whose amax values saturate some numbers.
struct LayerCase {
  LayerCase() {
    Draw draw(17);
    x = draw.normal({3, 5, 24}, at::kFloat).requires_grad_(true);
    weight = draw.normal({9, 24}, at::kFloat).requires_grad_(true);
    grad = draw.normal({3, 5, 9}, at::kFloat, 1e-3);
    main = draw.normal({9, 24}, at::kFloat, 1e-3);
    layer.input.amax = at::tensor({2.0F});
    layer.weight.amax = at::tensor({2.5F});
    layer.grad.amax = at::tensor({2e-3F});
    layer.grad.format = Fp8Format::e5m2;
  }
  Tensor x, weight, grad, main;
  Fp8Layer layer;
};

// The numbers that |x| is rounded to, as a matrix in fp64.
Tensor rounded(const Tensor& x, const Fp8Scaling& scaling) {
  const Fp8Matrix matrix = fp8_quantise(x.detach().reshape({-1, x.size(-1)}), scaling);
  return matrix.rowwise.to(at::kDouble) * matrix.rowwise_scales.to(at::kDouble);
}

// Expects a b, plus |first|. In fp32 a sum of k products has k roundings, two scales and one more sum have three: each
// is at most 2^-24 of the sum of magnitudes.
void expect_product(const char* what, const Tensor& got, const Tensor& a, const Tensor& b, const Tensor& first = {}) {
  Tensor wanted = at::matmul(a, b), bound = at::matmul(a.abs(), b.abs());
  if (first.defined()) {
    wanted += first;
    bound += first.abs();
  }
  bound *= std::ldexp(static_cast<double>(a.size(1) + 3), -24);
  const Tensor error = (got.detach().to(at::kDouble).view_as(wanted) - wanted).abs();
  EXPECT_TRUE(error.le(bound).all().item<bool>()) << what << ": off by " << largest(error);
}

// The whole layer with autograd, and the halves of its backward that tensor parallelism and zero-bubble schedules call.
TEST(Fp8Layer, ComputesTheProductsOfItsRoundedNumbersInEveryWay) {
  LayerCase c;
  const Tensor x = rounded(c.x, c.layer.input), w = rounded(c.weight, c.layer.weight),
               g = rounded(c.grad, c.layer.grad);
  const Tensor y = fp8_linear(c.x, c.weight, {}, nullptr, c.layer);
  expect_product("y", y, x, w.t());
  y.backward(c.grad);
  expect_product("dx", c.x.grad(), g, w);
  expect_product("dW", c.weight.grad(), g.t(), x);
  expect_product("dx, alone", fp8_input_grad(c.grad, c.weight, c.layer), g, w);
  expect_product("dW, alone", fp8_weight_grad(nullptr, c.grad, c.x, c.layer), g.t(), x);

  const Tensor before = c.main.to(at::kDouble);
  const GradSink whole{c.main.clone()}, alone{c.main.clone()};
  fp8_linear(c.x, c.weight, {}, &whole, c.layer).backward(c.grad);
  fp8_weight_grad(&alone, c.grad, c.x, c.layer);
  expect_product("dW into a sink", whole.main, g.t(), x, before);
  expect_product("dW into a sink, alone", alone.main, g.t(), x, before);
}

// Only training passes count inputs, and a weight is quantised again after forget_weight().
TEST(Fp8Layer, SeesInputsOfTrainingAndRemembersItsWeight) {
  LayerCase c;
  c.layer.input.seen = at::zeros({1});
  const at::NoGradGuard no_grad;
  c.layer.count_inputs(false);
  const Tensor y = fp8_linear(c.x, c.weight, {}, nullptr, c.layer);
  EXPECT_EQ(c.layer.input.seen.item<float>(), 0);
  c.layer.count_inputs(true);
  fp8_linear(c.x, c.weight, {}, nullptr, c.layer);
  EXPECT_EQ(c.layer.input.seen.item<float>(), largest(c.x));
  std::fill_n(c.weight.mutable_data_ptr<float>(), c.weight.numel(), 0.0F);  // like an optimizer's kernel
  EXPECT_TRUE(fp8_linear(c.x, c.weight, {}, nullptr, c.layer).equal(y));
  c.layer.forget_weight();
  EXPECT_EQ(largest(fp8_linear(c.x, c.weight, {}, nullptr, c.layer)), 0);
}

// The same operations on the same FP8 numbers: only the order of sums may differ, with at most 24 products.
TEST(Fp8Layer, AnMlpIsTwoLayersWithSwigluInBetween) {
  LayerCase one, other;
  const auto down_of = [](LayerCase& c) {
    Draw draw(23);
    auto down = std::make_unique<LayerCase>();
    down->weight = draw.normal({6, 5}, at::kFloat).requires_grad_(true);
    down->layer.input.amax = at::tensor({3.0F});
    c.weight = draw.normal({10, 24}, at::kFloat).requires_grad_(true);
    return down;
  };
  const auto down = down_of(one), other_down = down_of(other);
  const Tensor grad = Draw(29).normal({3, 5, 6}, at::kFloat, 1e-3);
  const GradSink up_sink{at::zeros({10, 24})}, down_sink{at::zeros({6, 5})};
  const Tensor y = fp8_mlp(one.x, {one.weight, &up_sink, &one.layer}, {down->weight, &down_sink, &down->layer});
  const Tensor middle = swiglu(fp8_linear(other.x, other.weight, {}, nullptr, other.layer));
  const Tensor wanted = fp8_linear(middle, other_down->weight, {}, nullptr, other_down->layer);
  const auto expect_near = [](const char* what, const Tensor& got, const Tensor& expected) {
    EXPECT_LE((got - expected).norm().item<double>(), 32 * std::ldexp(expected.norm().item<double>(), -24)) << what;
  };
  expect_near("y", y, wanted);
  y.backward(grad);
  wanted.backward(grad);
  expect_near("dx", one.x.grad(), other.x.grad());
  expect_near("dW of gate and up", up_sink.main, other.weight.grad());
  expect_near("dW of down", down_sink.main, other_down->weight.grad());
}

TEST(Fp8Quantise, RefusesWhatIsNoMatrix) {
  EXPECT_THAT([] { fp8_quantise(at::zeros({2, 3, 4}), {}); },
              ThrowsMessage<ConfigError>(HasSubstr("x is Float [2, 3, 4]; it must be a matrix")));
}

}  // namespace
}  // namespace concord::ops::testing::of_fp8
