#include "core/ops/precision/nf4.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include "core/base/config_error.h"
#include "core/ops/testing/samples.h"

namespace concord::ops::testing::of_nf4 {
namespace {

using at::Tensor;

Tensor dequantised(const Tensor& weight) {
  const Nf4Blocks blocks = nf4_quantise(weight);
  const QuantisedAbsmax absmax = quantise_absmax(blocks.absmax);
  const Tensor known =
      absmax_map().index_select(0, absmax.codes.view({-1}).to(at::kInt)).mul(absmax.scales[0]).add(absmax.mean);
  return nf4_dequantise(blocks.codes, known.view(absmax.codes.sizes()), weight);
}

double checksum(const Tensor& x, int64_t period, int64_t shift) {
  const Tensor factors = at::arange(x.numel(), at::kLong).remainder(period).add(shift);
  return x.reshape({-1}).to(at::kDouble).mul(factors).sum().item<double>();
}

// Values of bitsandbytes 0.50 for the same weight: quantize_4bit(w, blocksize=64, compress_statistics=True,
// quant_type="nf4") and dequantize_4bit.
TEST(Nf4, CodesAndValuesAreThoseOfBitsandbytes) {
  const Tensor i = at::arange(8 * 128, at::kLong);
  const Tensor weight = i.mul(7919)
                            .remainder(1009)
                            .sub(504)
                            .to(at::kFloat)
                            .div(512)
                            .mul(i.div(64, "floor").remainder(5).add(1))
                            .view({8, 128});
  const Nf4Blocks blocks = nf4_quantise(weight);
  EXPECT_EQ(checksum(blocks.codes, 251, 1), 7773914);
  const QuantisedAbsmax absmax = quantise_absmax(blocks.absmax);
  std::vector<int> codes;
  for (int64_t j = 0; j < absmax.codes.numel(); ++j) codes.push_back(absmax.codes.view({-1})[j].item<int>());
  EXPECT_THAT(codes, ::testing::ElementsAre(9, 42, 172, 222, 255, 9, 41, 179, 222, 252, 9, 42, 177, 219, 253, 9));
  EXPECT_EQ(absmax.scales[0].item<double>(), 2.1024169921875);
  EXPECT_EQ(absmax.mean, 2.7999267578125);
  // Sums of 1024 exact values in fp64, in any order.
  EXPECT_NEAR(checksum(dequantised(weight), 13, -6), 90.97868153452873, 1e-9);
  EXPECT_NEAR(checksum(dequantised(weight.to(at::kBFloat16)), 13, -6), 90.0400390625, 1e-9);
}

TEST(Nf4, BlocksOfZerosStayZerosAndOtherSizesAreRefused) {
  const Nf4Blocks blocks = nf4_quantise(at::zeros({2, 64}, at::kFloat));
  EXPECT_TRUE(at::equal(nf4_dequantise(blocks.codes, blocks.absmax, blocks.absmax), at::zeros({2, 64}, at::kFloat)));
  EXPECT_THROW(nf4_quantise(at::zeros({2, 96}, at::kFloat)), ConfigError);
  EXPECT_THROW(nf4_dequantise(blocks.codes, at::zeros({2, 2}, at::kFloat), blocks.absmax), ConfigError);
}

}  // namespace
}  // namespace concord::ops::testing::of_nf4
