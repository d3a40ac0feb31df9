#include "backends/cpu/testing/harness.h"

#include <cstring>
#include <vector>

#include "backends/cpu/random_fill.h"
#include "platform/sdk/checks.hpp"
#include "platform/sdk/philox.hpp"

namespace concord::cpu::testing {
namespace {

concord_rng_request request_of(concord_rng_kind kind, concord_dtype dtype, void* destination, int64_t count,
                               uint64_t offset = 0) {
  concord_rng_request request{};
  request.struct_size = sizeof request;
  request.kind = kind;
  request.dtype = dtype;
  request.destination = destination;
  request.count = count;
  request.key = 0xfeedbeef12345678;
  request.subsequence = 0x100000003;
  request.offset = offset;
  request.low = -1;
  request.high = 2.5;
  request.integer_low = -7;
  request.integer_high = 1000;
  return request;
}

// Runs |body|(kind, dtype, size of an element) for everything that the contract has.
template <class Body>
void for_each_kind(Body&& body) {
  for (concord_rng_kind kind = CONCORD_RNG_BITS; kind <= CONCORD_RNG_INTEGER; ++kind) {
    for (concord_dtype dtype = CONCORD_DTYPE_F32; dtype <= CONCORD_DTYPE_BOOL; ++dtype) {
      if (!sdk::rng_has(kind, dtype)) continue;
      SCOPED_TRACE(sdk::text("kind %d of %s", kind, sdk::dtype_name(dtype)));
      body(kind, dtype, static_cast<size_t>(sdk::dtype_size(dtype)));
    }
  }
}

// Returns |count| values, starting at |offset|, in bytes, computed one at a time: the definition itself.
std::vector<char> defined(concord_rng_kind kind, concord_dtype dtype, int64_t count, uint64_t offset) {
  const concord_rng_request request = request_of(kind, dtype, nullptr, count, offset);
  std::vector<char> bytes(static_cast<size_t>(count * sdk::dtype_size(dtype)));
  sdk::visit_rng(request, [&](const auto& generator) {
    for (int64_t i = 0; i < count; ++i) {
      const auto value = sdk::value_at(generator, request.key, request.subsequence, offset + static_cast<uint64_t>(i));
      std::memcpy(bytes.data() + static_cast<size_t>(i) * sizeof value, &value, sizeof value);
    }
  });
  return bytes;
}

TEST(Rng, FillsEqualTheDefinitionForEveryKindAndType) {
  for_each_kind([](concord_rng_kind kind, concord_dtype dtype, size_t size) {
    std::vector<char> bytes(1003 * size);
    const auto request = request_of(kind, dtype, bytes.data(), 1003, 5);
    EXPECT_OK(CALL(rng, fill, &request, nullptr));
    EXPECT_EQ(bytes, defined(kind, dtype, 1003, 5));
  });
}

TEST(Rng, EverySplitOfABufferGivesTheSameBits) {
  constexpr int64_t kCount = 300;
  for_each_kind([](concord_rng_kind kind, concord_dtype dtype, size_t size) {
    const std::vector<char> whole = defined(kind, dtype, kCount, 11);
    for (int64_t cut = 0; cut <= kCount; ++cut) {
      std::vector<char> bytes(whole.size());
      const auto head = request_of(kind, dtype, bytes.data(), cut, 11);
      const auto tail = request_of(kind, dtype, bytes.data() + static_cast<size_t>(cut) * size, kCount - cut,
                                   11 + static_cast<uint64_t>(cut));
      ASSERT_OK(CALL(rng, fill, &tail, nullptr));
      ASSERT_OK(CALL(rng, fill, &head, nullptr));
      ASSERT_EQ(bytes, whole) << "cut at " << cut;
    }
  });
}

TEST(Rng, RunsAreTheRowsOfABlockForAnyNumberOfThreads) {
  constexpr int64_t kRows = 37, kWidth = 23, kStride = 61;
  for_each_kind([](concord_rng_kind kind, concord_dtype dtype, size_t size) {
    const std::vector<char> all = defined(kind, dtype, kRows * kStride, 9);
    std::vector<char> block;
    for (int64_t row = 0; row < kRows; ++row) {
      const auto begin = all.begin() + row * kStride * static_cast<int64_t>(size);
      block.insert(block.end(), begin, begin + kWidth * static_cast<int64_t>(size));
    }
    for (const int threads : {1, 2, 5}) {
      std::vector<char> bytes(block.size());
      auto request = request_of(kind, dtype, bytes.data(), kRows * kWidth, 9);
      request.run_length = kWidth;
      request.run_stride = kStride;
      fill_random(request, threads);
      ASSERT_EQ(bytes, block) << threads << " threads";
    }
  });
}

TEST(Rng, ARequestOfVersion10KnowsNoRuns) {
  std::vector<int32_t> values(100);
  auto request = request_of(CONCORD_RNG_BITS, CONCORD_DTYPE_I32, values.data(), 100);
  request.struct_size = offsetof(concord_rng_request, run_length);
  request.run_length = 1;  // beyond the size that was given
  EXPECT_OK(CALL(rng, fill, &request, nullptr));
  EXPECT_EQ(std::memcmp(values.data(), defined(CONCORD_RNG_BITS, CONCORD_DTYPE_I32, 100, 0).data(), 400), 0);
}

TEST(Rng, AnyNumberOfThreadsGivesTheSameBits) {
  constexpr int64_t kCount = 10007;
  for_each_kind([](concord_rng_kind kind, concord_dtype dtype, size_t size) {
    const std::vector<char> whole = defined(kind, dtype, kCount, 3);
    for (int threads : {1, 2, 3, 4, 7, 16}) {
      std::vector<char> bytes(kCount * size);
      fill_random(request_of(kind, dtype, bytes.data(), kCount, 3), threads);
      ASSERT_EQ(bytes, whole) << threads << " threads";
    }
  });
}

TEST(Rng, FewElementsOnManyThreadsAreAllFilled) {
  for (int64_t count = 0; count < 10; ++count) {
    std::vector<int32_t> values(10, -1);
    fill_random(request_of(CONCORD_RNG_INTEGER, CONCORD_DTYPE_I32, values.data(), count), 4);
    for (int64_t i = 0; i < 10; ++i) EXPECT_EQ(values[static_cast<size_t>(i)] >= 0 || i >= count, true);
    EXPECT_EQ(std::vector<int32_t>(values.begin() + count, values.end()), std::vector<int32_t>(10 - count, -1));
  }
}

TEST(Rng, LargeFillsUseTheCoresThatTheThreadMayRunOn) {
  EXPECT_EQ(fill_threads(1000), 1);
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  EXPECT_EQ(fill_threads(int64_t{1} << 40), CPU_COUNT(&before));
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int core = 0; CPU_COUNT(&one) == 0; ++core) {
    if (CPU_ISSET(core, &before)) CPU_SET(core, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(fill_threads(int64_t{1} << 40), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

TEST(Rng, PositionsWrapAroundAtTheirEnd) {
  for_each_kind([](concord_rng_kind kind, concord_dtype dtype, size_t size) {
    const uint64_t offset = UINT64_MAX - 149;  // 150 positions before the end, then wraps to 0
    std::vector<char> bytes(400 * size);
    const auto request = request_of(kind, dtype, bytes.data(), 400, offset);
    EXPECT_OK(CALL(rng, fill, &request, nullptr));
    EXPECT_EQ(bytes, defined(kind, dtype, 400, offset));
    const std::vector<char> from_zero = defined(kind, dtype, 250, 0);
    EXPECT_EQ(std::memcmp(bytes.data() + 150 * size, from_zero.data(), from_zero.size()), 0);
  });
}

TEST(Rng, KeySubsequenceAndOffsetEachChangeTheValues) {
  std::vector<std::vector<int32_t>> seen;
  for (int changed = 0; changed < 6; ++changed) {
    std::vector<int32_t> values(64);
    auto request = request_of(CONCORD_RNG_BITS, CONCORD_DTYPE_I32, values.data(), 64);
    if (changed == 1) request.key += 1;
    if (changed == 2) request.key += uint64_t{1} << 32;
    if (changed == 3) request.subsequence += 1;
    if (changed == 4) request.subsequence += uint64_t{1} << 32;
    if (changed == 5) request.offset += uint64_t{1} << 40;
    EXPECT_OK(CALL(rng, fill, &request, nullptr));
    for (const auto& other : seen) EXPECT_NE(values, other) << changed;
    seen.push_back(values);
  }
}

TEST(Rng, FillsRunInTheOrderOfTheirStreamAndTheRequestIsReadAtTheCall) {
  Gate gate;
  const TestStream s;
  std::vector<int32_t> values(100, 42);
  auto request = request_of(CONCORD_RNG_BITS, CONCORD_DTYPE_I32, values.data(), 100);
  gate.block(s);
  EXPECT_OK(CALL(rng, fill, &request, s));
  request.key = 0;
  request.destination = nullptr;
  give_others_time();
  EXPECT_EQ(values, std::vector<int32_t>(100, 42));
  gate.open();
  EXPECT_OK(s.synchronize());
  const std::vector<char> expected = defined(CONCORD_RNG_BITS, CONCORD_DTYPE_I32, 100, 0);
  EXPECT_EQ(std::memcmp(values.data(), expected.data(), expected.size()), 0);
}

TEST(Rng, WrongRequestsAreRefused) {
  float value = 0;
  auto request = request_of(CONCORD_RNG_NORMAL, CONCORD_DTYPE_I32, &value, 1);
  EXPECT_REFUSED(CALL(rng, fill, &request, nullptr), "kind 3 and dtype i32");
  EXPECT_REFUSED(CALL(rng, fill, nullptr, nullptr), "request is null");
  request = request_of(CONCORD_RNG_NORMAL, CONCORD_DTYPE_F32, &value, -1);
  EXPECT_REFUSED(CALL(rng, fill, &request, nullptr), "-1");
  request.count = 1;
  EXPECT_REFUSED(CALL(rng, fill, &request, reinterpret_cast<concord_stream>(&value)), "stream");
  request.count = 0;
  request.destination = nullptr;
  EXPECT_OK(CALL(rng, fill, &request, nullptr));
}

}  // namespace
}  // namespace concord::cpu::testing
