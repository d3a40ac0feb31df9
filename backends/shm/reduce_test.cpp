// The arithmetic of reductions on its own: ends of ranges, NaN, infinity, rounding, aliasing, lengths.
#include "backends/shm/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "backends/shm/testing/values.hpp"

namespace concord::shm::testing {
namespace {

template <class Type>
Type reduce_one(concord_dtype dtype, concord_reduce_op op, const std::vector<Type>& values) {
  std::vector<const void*> sources;
  for (const Type& value : values) sources.push_back(&value);
  Type result{};
  find_reduction(dtype, op)(&result, sources.data(), static_cast<int32_t>(sources.size()), 1);
  return result;
}

TEST(ReduceTest, EveryLengthIsRightForEveryTypeAndReduction) {
  for (const concord_dtype dtype : kAllTypes) {
    for (const concord_reduce_op op : kAllReductions) {
      const Reduction reduction = find_reduction(dtype, op);
      if (reduction == nullptr) continue;
      for (const size_t sources : {2, 3, 4, 5, 8, 17}) {
        for (const int64_t count : {0, 1, 2, 3, 7, 15, 16, 17, 31, 33, 63, 65, 1023, 1024, 1025, 2049}) {
          std::vector<Buffer> inputs;
          std::vector<const void*> pointers;
          for (size_t s = 0; s < sources; ++s) inputs.push_back(input(static_cast<int>(s), count, dtype, 1));
          for (const Buffer& buffer : inputs) pointers.push_back(buffer.data());
          if (op == CONCORD_REDUCE_PROD && sources > 8)
            continue;  // leaves the range of f16, where the bound is not a bound
          Buffer result(inputs[0].size());
          reduction(result.data(), pointers.data(), static_cast<int32_t>(sources), count);
          ASSERT_EQ(find_wrong(inputs, result.data(), count, dtype, op), "")
              << sdk::dtype_name(dtype) << " " << sdk::reduce_name(op) << " of " << sources << " x " << count;
        }
      }
    }
  }
}

TEST(ReduceTest, TheResultMayTakeThePlaceOfAnySource) {
  for (const concord_dtype dtype : kAllTypes) {
    for (const size_t sources : {2, 3, 4}) {
      for (size_t place = 0; place < sources; ++place) {
        constexpr int64_t kCount = 2051;
        std::vector<Buffer> inputs;
        for (size_t s = 0; s < sources; ++s) inputs.push_back(input(static_cast<int>(s), kCount, dtype, 2));
        std::vector<Buffer> work = inputs;
        std::vector<const void*> pointers;
        for (const Buffer& buffer : work) pointers.push_back(buffer.data());
        find_reduction(dtype, CONCORD_REDUCE_SUM)(work[place].data(), pointers.data(), static_cast<int32_t>(sources),
                                                  kCount);
        EXPECT_EQ(find_wrong(inputs, work[place].data(), kCount, dtype, CONCORD_REDUCE_SUM), "")
            << sdk::dtype_name(dtype);
      }
    }
  }
}

TEST(ReduceTest, MinAndMaxKeepNanWhereverItIs) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const concord_reduce_op op : {CONCORD_REDUCE_MIN, CONCORD_REDUCE_MAX}) {
    for (size_t place = 0; place < 3; ++place) {
      std::vector<float> floats = {1, 2, 3};
      floats[place] = nan;
      std::vector<double> doubles(floats.begin(), floats.end());
      std::vector<uint16_t> halves;
      std::vector<uint16_t> brains;
      for (const float value : floats) halves.push_back(sdk::float_to_f16(value));
      for (const float value : floats) brains.push_back(sdk::float_to_bf16(value));
      EXPECT_TRUE(std::isnan(reduce_one(CONCORD_DTYPE_F32, op, floats)));
      EXPECT_TRUE(std::isnan(reduce_one(CONCORD_DTYPE_F64, op, doubles)));
      EXPECT_TRUE(std::isnan(sdk::f16_to_float(reduce_one(CONCORD_DTYPE_F16, op, halves))));
      EXPECT_TRUE(std::isnan(sdk::bf16_to_float(reduce_one(CONCORD_DTYPE_BF16, op, brains))));
      floats.resize(2);  // the loop for two sources is another one
      EXPECT_EQ(std::isnan(reduce_one(CONCORD_DTYPE_F32, op, floats)), place < 2);
    }
  }
}

TEST(ReduceTest, InfinitiesFollowIeee) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(reduce_one<float>(CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM, {inf, 1, 2}), inf);
  EXPECT_TRUE(std::isnan(reduce_one<float>(CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM, {inf, 1, -inf})));
  EXPECT_EQ(reduce_one<float>(CONCORD_DTYPE_F32, CONCORD_REDUCE_MIN, {inf, 1, -inf}), -inf);
  const uint16_t large = sdk::float_to_f16(60000);
  EXPECT_EQ(sdk::f16_to_float(reduce_one<uint16_t>(CONCORD_DTYPE_F16, CONCORD_REDUCE_SUM, {large, large})), inf);
}

// 256 + 1 + 1 is 258 in float and in bf16; rounded after every step it would stay 256.
TEST(ReduceTest, SixteenBitFloatsAreRoundedOnce) {
  const std::vector<uint16_t> brains = {sdk::float_to_bf16(256), sdk::float_to_bf16(1), sdk::float_to_bf16(1)};
  EXPECT_EQ(sdk::bf16_to_float(reduce_one(CONCORD_DTYPE_BF16, CONCORD_REDUCE_SUM, brains)), 258);
  const std::vector<uint16_t> halves = {sdk::float_to_f16(2048), sdk::float_to_f16(1), sdk::float_to_f16(1)};
  EXPECT_EQ(sdk::f16_to_float(reduce_one(CONCORD_DTYPE_F16, CONCORD_REDUCE_SUM, halves)), 2050);
  const uint16_t large = sdk::float_to_f16(60000);  // the sum overflows f16, the average does not
  EXPECT_EQ(sdk::f16_to_float(reduce_one<uint16_t>(CONCORD_DTYPE_F16, CONCORD_REDUCE_AVG, {large, large})), 60000);
}

TEST(ReduceTest, DenormalsAreNotFlushed) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(reduce_one<float>(CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM, {tiny, tiny}), 2 * tiny);
  const std::vector<uint16_t> halves(40, uint16_t{1});
  EXPECT_EQ(reduce_one(CONCORD_DTYPE_F16, CONCORD_REDUCE_SUM, halves), 40);
}

TEST(ReduceTest, IntegersWrapAndTheirAverageIsOfTheExactSum) {
  EXPECT_EQ(reduce_one<int8_t>(CONCORD_DTYPE_I8, CONCORD_REDUCE_SUM, {127, 1}), -128);
  EXPECT_EQ(reduce_one<int64_t>(CONCORD_DTYPE_I64, CONCORD_REDUCE_SUM, {INT64_MAX, 1}), INT64_MIN);
  EXPECT_EQ(reduce_one<int16_t>(CONCORD_DTYPE_I16, CONCORD_REDUCE_PROD, {INT16_MIN, -1}), INT16_MIN);
  EXPECT_EQ(reduce_one<uint8_t>(CONCORD_DTYPE_U8, CONCORD_REDUCE_SUM, {200, 100}), 44);
  EXPECT_EQ(reduce_one<uint8_t>(CONCORD_DTYPE_U8, CONCORD_REDUCE_AVG, {255, 255, 254}), 254);
  EXPECT_EQ(reduce_one<int64_t>(CONCORD_DTYPE_I64, CONCORD_REDUCE_AVG, {INT64_MAX, INT64_MAX}), INT64_MAX);
  EXPECT_EQ(reduce_one<int32_t>(CONCORD_DTYPE_I32, CONCORD_REDUCE_AVG, {-3, -4}), -3);  // towards zero
  EXPECT_EQ(reduce_one<int8_t>(CONCORD_DTYPE_I8, CONCORD_REDUCE_AVG, {-128, -128, -127}), -127);
}

TEST(ReduceTest, BoolIsOrAndAndWhateverByteMeansTrue) {
  EXPECT_EQ(reduce_one<uint8_t>(CONCORD_DTYPE_BOOL, CONCORD_REDUCE_SUM, {1, 1, 1}), 1);
  EXPECT_EQ(reduce_one<uint8_t>(CONCORD_DTYPE_BOOL, CONCORD_REDUCE_PROD, {2, 4}), 1);
  EXPECT_EQ(reduce_one<uint8_t>(CONCORD_DTYPE_BOOL, CONCORD_REDUCE_MIN, {1, 0}), 0);
  EXPECT_EQ(reduce_one<uint8_t>(CONCORD_DTYPE_BOOL, CONCORD_REDUCE_MAX, {0, 128}), 1);
}

TEST(ReduceTest, UnknownCombinationsHaveNoFunction) {
  EXPECT_EQ(find_reduction(CONCORD_DTYPE_BOOL, CONCORD_REDUCE_AVG), nullptr);
  for (const concord_dtype dtype : {0, 11, -1}) EXPECT_EQ(find_reduction(dtype, CONCORD_REDUCE_SUM), nullptr);
  for (const concord_reduce_op op : {0, 6, -1}) EXPECT_EQ(find_reduction(CONCORD_DTYPE_F32, op), nullptr);
}

}  // namespace
}  // namespace concord::shm::testing
