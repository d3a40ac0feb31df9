// The arithmetic of the kernel of AdamW for narrow moments, on the host: the codes of fractions by one lookup, compared
// with those of core's encoding, and quotients by multiplication, compared with the processor's.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "backends/cuda/torch/ops/divisor.hpp"
#include "core/ops/optimizer/block_codes.h"
#include "platform/base/code_buckets.hpp"

namespace concord::cuda::torch_side {
namespace {

struct Entries {
  std::vector<uint32_t> positive, negative;

  explicit Entries(const float* thresholds) {
    for (int i = 0; i < codes::kBuckets; ++i) {
      positive.push_back(codes::bucket_entry(thresholds, i, false));
      negative.push_back(codes::bucket_entry(thresholds, i, true));
    }
  }
};

const float* thresholds_of(CodeMap map) { return code_table(map, at::kCPU).const_data_ptr<float>() + codes::kCount; }

// Every threshold and its neighbours, the bounds of all buckets, and numbers of all magnitudes, of both signs.
std::vector<float> fractions_near_borders(const float* thresholds) {
  std::vector<float> all = {0, 1, 0x1p-149f, 0x1p-126f, 0x1p-23f, std::nextafter(1.0f, 0.0f)};
  for (int i = 0; i < codes::kThresholds; ++i) all.push_back(std::abs(thresholds[i]));
  for (uint32_t prefix = codes::kFirstPrefix - 300; prefix <= codes::kLastPrefix; ++prefix) {
    all.push_back(std::bit_cast<float>(prefix << 16));
  }
  const size_t borders = all.size();
  for (size_t i = 0; i < borders; ++i) {
    all.push_back(std::nextafter(all[i], 0.0f));
    all.push_back(std::min(1.0f, std::nextafter(all[i], 2.0f)));
  }
  std::mt19937 random(1);
  for (int i = 0; i < 1000000; ++i) {
    all.push_back(std::bit_cast<float>(static_cast<uint32_t>(random() % 0x3f800001u)));  // of [0, 1]
  }
  const size_t positive = all.size();
  for (size_t i = 0; i < positive; ++i) all.push_back(-all[i]);
  return all;
}

TEST(CodeBuckets, GiveTheCodesOfBlocks) {
  for (const CodeMap map : {CodeMap::dynamic_signed, CodeMap::dynamic_unsigned}) {
    const Entries entries(thresholds_of(map));
    std::vector<float> fractions = fractions_near_borders(thresholds_of(map));
    // Each block begins with 1, so that its scale is 1 and its values are the fractions.
    std::vector<float> values;
    for (const float fraction : fractions) {
      if (values.size() % kStateBlock == 0) values.push_back(1);
      values.push_back(fraction);
    }
    values.resize((values.size() + kStateBlock - 1) / kStateBlock * kStateBlock, 1);
    const auto count = static_cast<int64_t>(values.size());
    const at::Tensor codes = at::empty({count}, at::kByte), scales = at::empty({count / kStateBlock}, at::kFloat);
    encode_blocks(at::from_blob(values.data(), {count}, at::kFloat), map, codes, scales);
    ASSERT_EQ(scales.eq(1).all().item<bool>(), true);
    const auto* right = codes.const_data_ptr<uint8_t>();
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(codes::by_bucket<true>(entries.positive.data(), entries.negative.data(), values[i]), right[i])
          << values[i];
      if (values[i] >= 0) {
        ASSERT_EQ(codes::by_bucket<false>(entries.positive.data(), nullptr, values[i]), right[i]) << values[i];
      }
      ASSERT_EQ(codes::by_search(thresholds_of(map), values[i]), right[i]) << values[i];
    }
    EXPECT_EQ(codes::by_bucket_or_nan<false>(entries.positive.data(), nullptr, std::nanf("")), 255u);
  }
}

// Whether no two thresholds share a bucket: an entry has room for one.
TEST(CodeBuckets, HaveAtMostOneThreshold) {
  for (const CodeMap map : {CodeMap::dynamic_signed, CodeMap::dynamic_unsigned}) {
    const float* thresholds = thresholds_of(map);
    for (int i = 0; i < codes::kThresholds; ++i) {
      const uint32_t prefix = std::bit_cast<uint32_t>(thresholds[i]) >> 16;
      EXPECT_GT(prefix & 0x7fff, codes::kFirstPrefix);
      EXPECT_LT(prefix & 0x7fff, codes::kLastPrefix);
      if (i > 0) {
        EXPECT_NE(prefix, std::bit_cast<uint32_t>(thresholds[i - 1]) >> 16) << i;
      }
    }
  }
}

TEST(Divisor, HasTheBitsOfADivision) {
  std::mt19937_64 random(2);
  const auto number = [&](int least, int most) {  // of magnitude 2^least .. 2^most
    const auto mantissa = static_cast<uint32_t>(random() & 0x7fffff);
    const auto exponent = static_cast<uint32_t>(127 + least + static_cast<int>(random() % (most - least + 1)));
    return std::bit_cast<float>(exponent << 23 | mantissa | static_cast<uint32_t>(random() & 0x80000000));
  };
  for (int i = 0; i < 20000000; ++i) {
    const float divisor = std::abs(number(-40, 99));
    const float x = i % 4 == 0
                        ? std::bit_cast<float>(std::bit_cast<uint32_t>(divisor) - static_cast<uint32_t>(random() % 64))
                        : divisor * number(-30, -1);
    const Divisor by{divisor, 1 / divisor};
    ASSERT_TRUE(by.is_in_range());
    ASSERT_EQ(by.divide(x), x / divisor) << x << " / " << divisor;
  }
  // Quotients just below 1, of the largest mantissas: the first one can be off by almost 1.5 units.
  for (uint32_t x = 0x3fffff00; x < 0x40000000; ++x) {
    for (uint32_t divisor = x + 1; divisor < 0x40000000; ++divisor) {
      const auto a = std::bit_cast<float>(x), b = std::bit_cast<float>(divisor);
      ASSERT_EQ((Divisor{b, 1 / b}.divide(a)), a / b) << a << " / " << b;
    }
  }
  for (int i = 0; i < 5000000; ++i) {  // roots, divided by that of a bias correction
    const float root = std::abs(number(-75, 63)), divisor = std::abs(number(-12, -1));
    ASSERT_EQ((Divisor{divisor, 1 / divisor}.divide(root)), root / divisor) << root << " / " << divisor;
  }
  EXPECT_EQ((Divisor{0.5f, 2}.divide(0)), 0);
}

}  // namespace
}  // namespace concord::cuda::torch_side
