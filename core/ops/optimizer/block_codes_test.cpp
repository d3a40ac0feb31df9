// Codes of blocks, compared with the nearest fraction by search, and with those of torchao.
#include "core/ops/optimizer/block_codes.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/ops/testing/samples.h"

namespace concord::ops::testing::of_block_codes {
namespace {

constexpr CodeMap kMaps[] = {CodeMap::dynamic_signed, CodeMap::dynamic_unsigned};

struct Coded {
  at::Tensor codes, scales;

  explicit Coded(const at::Tensor& values, CodeMap map)
      : codes(at::empty({values.numel()}, at::kByte)), scales(at::empty({values.numel() / kStateBlock}, at::kFloat)) {
    encode_blocks(values, map, codes, scales);
  }
  at::Tensor decoded(CodeMap map) const {
    const at::Tensor values = at::empty({codes.numel()}, at::kFloat);
    decode_blocks(codes, scales, map, values);
    return values;
  }
};

TEST(CodeMap, HasSevenDecadesZeroAndOne) {
  for (const CodeMap map : kMaps) {
    const auto& fractions = code_fractions(map);
    EXPECT_TRUE(std::ranges::is_sorted(fractions));
    EXPECT_EQ(std::ranges::adjacent_find(fractions), fractions.end()) << "each is there once";
    EXPECT_EQ(fractions[255], 1);
    EXPECT_EQ(fractions[static_cast<size_t>(code_of_zero(map))], 0);
  }
  // The middles of the parts of [0.1, 1] of the largest decade, and of the only part of the smallest.
  const auto& both = code_fractions(CodeMap::dynamic_signed);
  EXPECT_NEAR(both[254], 1 - 0.9 / 128, 1e-7);
  EXPECT_EQ(both[0], -both[254]);
  EXPECT_NEAR(both[128], 0.55e-6, 1e-13);
  EXPECT_NEAR(code_fractions(CodeMap::dynamic_unsigned)[1], (0.1 + 0.9 / 4) * 1e-6, 1e-13);
}

// The nearest of all fractions, or one that is equally near within the rounding of fp32.
TEST(BlockCodes, AreThoseOfTheNearestFractions) {
  Draw draw(3);
  for (const CodeMap map : kMaps) {
    at::Tensor values = draw.normal({64 * kStateBlock}, at::kFloat).pow(3);
    if (map == CodeMap::dynamic_unsigned) values = values.abs();
    const Coded coded(values, map);
    const auto& fractions = code_fractions(map);
    for (int64_t i = 0; i < values.numel(); ++i) {
      const double scale = coded.scales.const_data_ptr<float>()[i / kStateBlock];
      const double x = values.const_data_ptr<float>()[i] / scale;
      double nearest = 2;
      for (const float each : fractions) nearest = std::min(nearest, std::abs(x - each));
      const double own = std::abs(x - fractions[coded.codes.const_data_ptr<uint8_t>()[i]]);
      ASSERT_LE(own, nearest + 0x1p-23 * std::abs(x)) << i;
    }
    EXPECT_TRUE(coded.scales.equal(std::get<0>(values.view({-1, kStateBlock}).abs().max(1))));
  }
}

// Compares the loops of the host with libtorch's operators, by which devices code: blocks with numbers of all
// magnitudes, of zeros, of numbers below the least scale, of infinities and of NaN; more blocks than a thread takes.
TEST(BlockCodes, OnTheHostHaveTheBitsOfThoseOfDevices) {
  Draw draw(9);
  constexpr int64_t kBlocks = 700;
  const double none = std::numeric_limits<double>::quiet_NaN(), infinite = std::numeric_limits<double>::infinity();
  for (const CodeMap map : kMaps) {
    const at::Tensor values = draw.normal({kBlocks, kStateBlock}, at::kFloat);
    values.mul_(draw.normal({kBlocks, kStateBlock}, at::kFloat, 8).exp())
        .mul_(draw.normal({kBlocks, 1}, at::kFloat, 30).exp());
    if (map == CodeMap::dynamic_unsigned) values.abs_();
    values.select(0, 3).zero_();
    values.select(0, 4).mul_(1e-38);
    values.select(0, 5).select(0, 7).fill_(infinite);
    values.select(0, 5).select(0, 8).fill_(-infinite);
    values.select(0, 6).select(0, 255).fill_(none);
    const Coded host(values.view(-1), map);
    const at::Tensor table = code_table(map, at::kCPU);
    const at::Tensor codes = at::empty_like(host.codes), scales = at::empty_like(host.scales);
    encode_blocks(values.view(-1), table, codes, scales);
    EXPECT_TRUE(host.codes.equal(codes)) << host.codes.ne(codes).nonzero();
    EXPECT_TRUE(host.scales.allclose(scales, 0, 0, /*equal_nan=*/true));
    const at::Tensor decoded = at::empty_like(values).view(-1);
    decode_blocks(codes, scales, table, decoded);
    EXPECT_TRUE(host.decoded(map).allclose(decoded, 0, 0, /*equal_nan=*/true));
  }
}

// Decoding and encoding again changes nothing if the largest magnitude of a block is positive: 1 is a fraction.
TEST(BlockCodes, OfDecodedValuesAreTheSame) {
  Draw draw(5);
  for (const CodeMap map : kMaps) {
    at::Tensor values = draw.normal({16 * kStateBlock}, at::kFloat);
    if (map == CodeMap::dynamic_unsigned) values = values.abs();
    values.view({-1, kStateBlock}).select(1, 7).fill_(10);
    const Coded once(values, map), twice(once.decoded(map), map);
    EXPECT_TRUE(once.codes.equal(twice.codes));
    EXPECT_TRUE(once.scales.equal(twice.scales));
  }
}

uint64_t fnv1a(const at::Tensor& tensor) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto* bytes = static_cast<const uint8_t*>(tensor.const_data_ptr());
  for (size_t i = 0; i < tensor.nbytes(); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3;
  return hash;
}

// The hashes are of quantize_8bit_with_qmap and scale_tensor (torchao 0.18.0, torchao/optim/quant_utils.py) for the
// same values, or their magnitudes, with create_dynamic_map in a process with ATEN_CPU_CAPABILITY=default.
TEST(BlockCodes, AreTorchaos) {
  const at::Tensor values = at::empty({1 << 16}, at::kFloat);
  for (int64_t i = 0; i < values.numel(); ++i) {
    const double u = static_cast<double>((static_cast<uint64_t>(i) * 2654435761u) & 0xffffffffu) * 0x1p-31 - 1;
    values.data_ptr<float>()[i] = static_cast<float>(u * u * u);
  }
  const Coded both(values, CodeMap::dynamic_signed), magnitudes(values.abs(), CodeMap::dynamic_unsigned);
  EXPECT_EQ(fnv1a(both.codes), 0xe3000dde9a597b28);
  EXPECT_EQ(fnv1a(magnitudes.codes), 0x441521b1a5ab664f);
  EXPECT_EQ(fnv1a(both.scales), 0x8470db82c72489a3);
  EXPECT_EQ(fnv1a(magnitudes.scales), 0x8470db82c72489a3);
}

TEST(BlockCodes, OfZerosAreZeros) {
  for (const CodeMap map : kMaps) {
    const Coded coded(at::zeros({2 * kStateBlock}, at::kFloat), map);
    EXPECT_TRUE(coded.codes.eq(code_of_zero(map)).all().item<bool>());
    EXPECT_TRUE(coded.decoded(map).eq(0).all().item<bool>());
  }
}

}  // namespace
}  // namespace concord::ops::testing::of_block_codes
