#include "core/data_parallel/checksum.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace concord {
namespace {

int64_t checksum(const at::Tensor& tensor) { return checksums(std::vector{tensor}).at(0); }

at::Tensor random_bits(int64_t elements, at::ScalarType type, uint64_t seed) {
  at::Tensor tensor = at::zeros({elements}, type);
  std::mt19937_64 random(seed);
  auto* bytes = static_cast<uint8_t*>(tensor.data_ptr());
  for (size_t i = 0; i < tensor.nbytes(); ++i) bytes[i] = static_cast<uint8_t>(random());
  return tensor;
}

void flip(const at::Tensor& tensor, uint64_t bit) {
  static_cast<uint8_t*>(tensor.data_ptr())[bit / 8] ^= static_cast<uint8_t>(1U << (bit % 8));
}

const std::vector<at::ScalarType> kTypes = {at::kFloat, at::kBFloat16, at::kHalf, at::kLong, at::kByte, at::kDouble};

// With any remainder at the end: an incomplete word, an incomplete row, both.
TEST(Checksum, EverySingleFlippedBitIsFoundInEveryType) {
  for (const at::ScalarType type : kTypes) {
    for (const int64_t elements : {1, 2, 3, 5, 9, 31}) {
      const at::Tensor tensor = random_bits(elements, type, 1);
      const int64_t before = checksum(tensor);
      for (uint64_t bit = 0; bit < 8 * tensor.nbytes(); ++bit) {
        flip(tensor, bit);
        ASSERT_NE(checksum(tensor), before) << type << ", " << elements << " elements, bit " << bit;
        flip(tensor, bit);
      }
      EXPECT_EQ(checksum(tensor), before) << "all flips undone";
    }
  }
}

TEST(Checksum, RandomFlipsAreFoundInManyRows) {
  constexpr int64_t elements = 3 * 8 * kChecksumColumns + 13;
  for (const at::ScalarType type : kTypes) {
    const at::Tensor tensor = random_bits(elements, type, 2);
    const int64_t before = checksum(tensor);
    std::mt19937_64 random(3);
    for (int i = 0; i < 100; ++i) {
      const uint64_t bit = random() % (8 * tensor.nbytes());
      flip(tensor, bit);
      ASSERT_NE(checksum(tensor), before) << type << ", bit " << bit;
      flip(tensor, bit);
    }
  }
}

TEST(Checksum, TheHighestBitsOfTwoWordsDoNotCancel) {
  const at::Tensor tensor = at::zeros({40}, at::kFloat);
  const int64_t before = checksum(tensor);
  flip(tensor, 63);
  flip(tensor, 127);
  EXPECT_NE(checksum(tensor), before);
}

TEST(Checksum, NeighboursThatAreSwappedAreFound) {
  const at::Tensor tensor = at::zeros({8}, at::kFloat);
  tensor[2] = 1.5;
  const int64_t before = checksum(tensor);
  for (const int64_t other : {0, 1, 3, 4, 5}) {
    const at::Tensor moved = at::zeros({8}, at::kFloat);
    moved[other] = 1.5;
    EXPECT_NE(checksum(moved), before) << other;
  }
}

// 0 and -0, and two NaNs: equal or unequal as numbers, but not as bits.
TEST(Checksum, BitsCountNotNumbers) {
  EXPECT_NE(checksum(at::full({4}, -0.0F)), checksum(at::zeros({4})));
  const at::Tensor nan = at::full({4}, std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(checksum(nan), checksum(nan.clone()));
}

// The definition, word by word.
TEST(Checksum, IsTheSumOfTheMixedSumsOfColumns) {
  for (const int64_t rows : {0, 1, 3, 4, 5, 8, 11}) {
    const at::Tensor words = random_bits(rows * kChecksumColumns + 5, at::kLong, 6);
    std::vector<uint64_t> sums(kChecksumColumns, 0);
    for (int64_t i = 0; i < words.numel(); ++i) {
      sums[static_cast<size_t>(i % kChecksumColumns)] += static_cast<uint64_t>(words.data_ptr<int64_t>()[i]);
    }
    at::Tensor one_row = at::zeros({kChecksumColumns}, at::kLong);
    std::copy(sums.begin(), sums.end(), reinterpret_cast<uint64_t*>(one_row.data_ptr<int64_t>()));
    EXPECT_EQ(checksum(words), checksum(one_row)) << rows;
  }
}

TEST(Checksum, EachTensorHasItsOwn) {
  const at::Tensor a = random_bits(100, at::kFloat, 4), b = random_bits(7, at::kBFloat16, 5);
  EXPECT_EQ(checksums(std::vector{a, b}), (std::vector{checksum(a), checksum(b)}));
  EXPECT_TRUE(checksums({}).empty());
}

}  // namespace
}  // namespace concord
