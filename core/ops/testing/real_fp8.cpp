// Samples of FP8 operators at real sizes (samples.h): more than one tile of a kernel in each dimension, partial last
// tiles, and products that go to a device's GEMM.
#include <ATen/TensorOperators.h>
#include <ATen/ops/ldexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "core/ops/precision/fp8.h"
#include "core/ops/precision/nf4.h"
#include "core/ops/testing/samples.h"

namespace concord::ops::testing {
namespace {

struct MatrixSize {
  int64_t rows, columns;
};

const std::vector<MatrixSize> kFp8Matrices = {{48, 144}, {1040, 912}, {2048, 896}, {131, 77}};

at::Tensor draw_fp8_amax(Draw& draw) { return draw.normal({1}, at::kFloat).abs() + 0.5; }

std::vector<SampleMaker> for_fp8_matrices(Sample (*maker)(const MatrixSize&, Draw&, c10::ScalarType)) {
  std::vector<SampleMaker> made;
  for (const MatrixSize& size : kFp8Matrices) {
    made.push_back([size, maker](Draw& draw, c10::ScalarType type) { return maker(size, draw, type); });
  }
  return made;
}

const RegisterRealSizes kRealFp8Amax("concord::fp8_amax_",
                                     for_fp8_matrices([](const MatrixSize& size, Draw& draw, c10::ScalarType type) {
                                       const at::Tensor x = draw.normal({size.rows, size.columns}, type);
                                       return Sample{{draw_fp8_amax(draw), x}, 0};
                                     }));

const RegisterRealSizes kRealFp8Quantise("concord::fp8_quantise",
                                         for_fp8_matrices([](const MatrixSize& size, Draw& draw, c10::ScalarType type) {
                                           const at::Tensor x = draw.normal({size.rows, size.columns}, type);
                                           const int64_t format = draw.between(0, 1);
                                           return Sample{{x, draw_fp8_amax(draw), c10::IValue(), format}, 0};
                                         }));

const RegisterRealSizes kRealFp8Blocks("concord::fp8_quantise_blocks",
                                       for_fp8_matrices([](const MatrixSize& size, Draw& draw, c10::ScalarType type) {
                                         const at::Tensor x = draw.normal({size.rows, size.columns}, type);
                                         return Sample{{x, draw.coin()}, 0};
                                       }));

// As in fp8_test.cpp: a number adjacent to the exact one, if the intermediate result is rounded the other way. The
// intermediate result is of |type|, and small fp16 numbers have an error of up to 2^-25, times the scale, which is the
// format's largest number / amax. |amax| is the index of that argument.
Sample::Slack real_neighbour(int64_t format, c10::ScalarType type, size_t amax) {
  return [=](const std::vector<c10::IValue>& given, const std::vector<at::Tensor>& exact) {
    const double step = format == 0 ? 0.125 : 0.25, smallest = format == 0 ? std::ldexp(1, -9) : std::ldexp(1, -16);
    const double largest = format == 0 ? 448 : 57344, scale = largest / given[amax].toTensor().item().toDouble();
    const double rounded = type == at::kHalf ? std::ldexp(scale, -25) : 0;
    const auto near = [&](const at::Tensor& x) {
      return (x.to(at::kDouble).abs() + rounded) * (1 + step * 1.01) - x.to(at::kDouble).abs() + smallest;
    };
    return std::vector<at::Tensor>{near(exact[0]), near(exact[1]),
                                   at::zeros({1}, exact[0].options().dtype(at::kDouble))};
  };
}

const RegisterRealSizes kRealFp8Swiglu(
    "concord::fp8_swiglu", for_fp8_matrices([](const MatrixSize& size, Draw& draw, c10::ScalarType type) {
      const at::Tensor both = draw.normal({size.rows, 2 * size.columns}, type);
      const int64_t format = draw.between(0, 1);
      return Sample{{both, draw_fp8_amax(draw), c10::IValue(), format}, 0, {}, real_neighbour(format, type, 1)};
    }));

const RegisterRealSizes kRealFp8SwigluBackward(
    "concord::fp8_swiglu_backward", for_fp8_matrices([](const MatrixSize& size, Draw& draw, c10::ScalarType type) {
      const at::Tensor both = draw.normal({size.rows, 2 * size.columns}, type);
      const at::Tensor grad = draw.normal({size.rows, size.columns}, type);
      const int64_t format = draw.between(0, 1);
      return Sample{{grad, both, draw_fp8_amax(draw), c10::IValue(), format}, 0, {}, real_neighbour(format, type, 2)};
    }));

// ----------------------------------------------------------------------------------------------------------- products

enum class Fp8Unit { matrix, rows, squares };  // the unit that has one scale

struct Fp8ProductSize {
  int64_t m, n, k;
  bool e5m2, fast;
  Fp8Unit a_unit = Fp8Unit::matrix, b_unit = Fp8Unit::matrix;
};

const std::vector<Fp8ProductSize> kFp8Products = {{48, 32, 80, false, false},
                                                  {2048, 896, 4864, false, true},
                                                  {4096, 1152, 896, true, false},
                                                  {100, 60, 33, true, false},
                                                  {200, 140, 300, false, true, Fp8Unit::rows, Fp8Unit::squares},
                                                  {2048, 896, 4864, false, true, Fp8Unit::rows, Fp8Unit::squares},
                                                  {2048, 4864, 896, false, false, Fp8Unit::rows, Fp8Unit::squares},
                                                  {1152, 896, 4096, false, false, Fp8Unit::rows, Fp8Unit::rows}};

at::Tensor draw_narrow(Draw& draw, int64_t rows, int64_t columns, bool e5m2) {
  const auto type = type_of(e5m2 ? Fp8Format::e5m2 : Fp8Format::e4m3);
  return draw.normal({rows, columns}, at::kFloat, e5m2 ? 3 : 1).to(type);
}

// Powers of two, like the block scales of fp8_quantise.
at::Tensor draw_scales(Draw& draw, int64_t rows, int64_t columns, Fp8Unit unit) {
  if (unit == Fp8Unit::matrix) return draw_fp8_amax(draw);
  const auto blocks = [](int64_t size) { return (size + kFp8Block - 1) / kFp8Block; };
  const at::Tensor exponents = draw.normal({unit == Fp8Unit::rows ? rows : blocks(rows), blocks(columns)}, at::kFloat);
  return at::ldexp(at::ones_like(exponents), exponents.round());
}

// Returns the scale of each element of |of|.
at::Tensor spread(const at::Tensor& scales, const at::Tensor& of) {
  if (scales.dim() < 2) return scales;
  const int64_t lines = scales.size(0) == of.size(0) ? 1 : kFp8Block;
  return scales.repeat_interleave(lines, 0)
      .narrow(0, 0, of.size(0))
      .repeat_interleave(kFp8Block, 1)
      .narrow(1, 0, of.size(1));
}

// Hopper's tensor cores keep 13 fraction bits of a sum and truncate the rest: each of k / 32 additions loses up to
// 2^-13 of it. Partial sums of terms of random sign are at most 8 / sqrt(k) of the sum of absolute values. Unless
// |fast|, partial sums are short and are added in fp32. Blocks of 128 are four additions each, and the one with the
// largest scale can be nearly all of the sum.
at::Tensor product_slack(const at::Tensor& a, const at::Tensor& a_scales, const at::Tensor& b,
                         const at::Tensor& b_scales, bool fast) {
  const double additions = a_scales.dim() == 2 ? 4 : fast ? std::max(1.0, std::sqrt(a.size(1)) / 4) : 1;
  const double share = std::ldexp(1, -13) * additions;
  return share * at::matmul(a.abs() * spread(a_scales, a), (b.abs() * spread(b_scales, b)).t());
}

Sample real_product(const Fp8ProductSize& size, Draw& draw, c10::ScalarType type) {
  const at::Tensor a = draw_narrow(draw, size.m, size.k, size.e5m2), b = draw_narrow(draw, size.n, size.k, false);
  const at::Tensor a_scale = draw_scales(draw, size.m, size.k, size.a_unit);
  const at::Tensor b_scale = draw_scales(draw, size.n, size.k, size.b_unit);
  const auto slack = [fast = size.fast && size.a_unit == Fp8Unit::matrix](const std::vector<c10::IValue>& given,
                                                                          const std::vector<at::Tensor>&) {
    const auto tensor = [&](size_t i) { return given[i].toTensor(); };
    return std::vector<at::Tensor>{product_slack(tensor(0), tensor(1), tensor(2), tensor(3), fast)};
  };
  const c10::IValue bias = draw.coin() ? c10::IValue(draw.normal({size.n}, type)) : c10::IValue();
  return Sample{{a, a_scale, b, b_scale, bias, type, size.fast}, 0, {}, slack};
}

Sample real_product_into(const Fp8ProductSize& size, Draw& draw, c10::ScalarType) {
  const at::Tensor a = draw_narrow(draw, size.m, size.k, size.e5m2), b = draw_narrow(draw, size.n, size.k, false);
  const at::Tensor a_scale = draw_scales(draw, size.m, size.k, size.a_unit);
  const at::Tensor b_scale = draw_scales(draw, size.n, size.k, size.b_unit);
  const auto slack = [](const std::vector<c10::IValue>& given, const std::vector<at::Tensor>&) {
    const auto tensor = [&](size_t i) { return given[i].toTensor(); };
    return std::vector<at::Tensor>{product_slack(tensor(1), tensor(2), tensor(3), tensor(4), false)};
  };
  const at::Tensor main = draw.normal({size.m, size.n}, at::kFloat);
  return Sample{{main, a, a_scale, b, b_scale, draw.coin()}, 0, {}, slack};
}

std::vector<SampleMaker> for_fp8_products(Sample (*maker)(const Fp8ProductSize&, Draw&, c10::ScalarType)) {
  std::vector<SampleMaker> made;
  for (const Fp8ProductSize& size : kFp8Products) {
    made.push_back([size, maker](Draw& draw, c10::ScalarType type) { return maker(size, draw, type); });
  }
  return made;
}

const RegisterRealSizes kRealFp8Product("concord::fp8_matmul", for_fp8_products(real_product));
const RegisterRealSizes kRealFp8ProductInto("concord::fp8_matmul_", for_fp8_products(real_product_into));

// ---------------------------------------------------------------------------------------------------- nf4_dequantise

Sample draw_nf4(int64_t rows, int64_t blocks, Draw& draw, c10::ScalarType type) {
  const at::Tensor codes = draw.integers({rows, blocks * kNf4Block / 2}, 0, 255).to(at::kByte);
  return {{codes, draw.normal({rows, blocks}, at::kFloat).abs(), at::zeros({0}, type)}};
}
const RegisterSamples kNf4("concord::nf4_dequantise", [](Draw& draw, c10::ScalarType type) {
  return draw_nf4(draw.size(), draw.between(1, 5), draw, type);
});
const RegisterRealSizes kRealNf4("concord::nf4_dequantise",
                                 {[](Draw& draw, c10::ScalarType type) { return draw_nf4(40, 3, draw, type); },
                                  [](Draw& draw, c10::ScalarType type) { return draw_nf4(1153, 64, draw, type); }});

}  // namespace
}  // namespace concord::ops::testing
