// Each invalid argument is rejected with its value in the message; each valid one passes.
#include "platform/sdk/checks.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace concord::sdk {
namespace {

using testing::HasSubstr;

// Runs |body|, which must throw |status| with |part| in its message.
template <class Body>
void expect_failure(Body&& body, const char* part, concord_status status = CONCORD_STATUS_INVALID_ARGUMENT) {
  try {
    body();
    FAIL() << "nothing was thrown; expected a sentence with: " << part;
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.status(), status);
    EXPECT_THAT(failure.what(), HasSubstr(part));
  }
}

constexpr concord_dtype kF32 = CONCORD_DTYPE_F32;
constexpr concord_reduce_op kSum = CONCORD_REDUCE_SUM;
alignas(64) float buffer_a[64];
alignas(64) float buffer_b[64];

TEST(Dtypes, SizesAndNamesOfAllTypes) {
  const int64_t sizes[] = {0, 4, 8, 2, 2, 1, 2, 4, 8, 1, 1};
  for (concord_dtype dtype = CONCORD_DTYPE_F32; dtype <= CONCORD_DTYPE_BOOL; ++dtype) {
    EXPECT_EQ(dtype_size(dtype), sizes[dtype]) << dtype_name(dtype);
    EXPECT_THAT(kDtypeNames, HasSubstr(dtype_name(dtype)));
  }
  expect_failure([] { dtype_size(0); }, "dtype 0 is unknown");
  expect_failure([] { dtype_size(11); }, "dtype 11 is unknown");
  expect_failure([] { dtype_size(-1); }, "dtype -1 is unknown");
}

TEST(Dtypes, PortableHalfConversionEqualsTheCompilersForAllHalves) {
  for (uint32_t half = 0; half <= 0xffff; ++half) {
    const auto value = static_cast<uint16_t>(half);
    ASSERT_EQ(float_bits(f16_to_float(value)), float_bits(f16_to_float_portable(value))) << half;
    const uint16_t back = float_to_f16(f16_to_float(value));
    ASSERT_TRUE(back == value || ((value & 0x7fff) > 0x7c00 && std::isnan(f16_to_float(back)))) << half;
  }
}

TEST(Dtypes, FloatToHalfRoundsToNearestEvenAroundEveryHalf) {
  for (uint32_t half = 0; half < 0x7c00; ++half) {  // the float between each two halves, and its two neighbours
    const float low = f16_to_float(static_cast<uint16_t>(half));
    const float next = half == 0x7bff ? 65536.0f : f16_to_float(static_cast<uint16_t>(half + 1));
    const float middle = low + (next - low) / 2;
    for (float value : {std::nextafterf(middle, 0), middle, std::nextafterf(middle, 1e6f)}) {
      const uint32_t expected = value < middle ? half : value > middle ? half + 1 : half + (half & 1);
      ASSERT_EQ(float_to_f16(value), expected) << value;
      ASSERT_EQ(float_to_f16_portable(value), expected) << value;
      ASSERT_EQ(float_to_f16_portable(-value), expected | 0x8000) << value;
    }
  }
}

TEST(Dtypes, FloatToBf16RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(float_to_bf16(1.0f), 0x3f80);
  EXPECT_EQ(float_to_bf16(float_from_bits(0x3f808000)), 0x3f80);  // a tie goes to even, down
  EXPECT_EQ(float_to_bf16(float_from_bits(0x3f818000)), 0x3f82);  // and up
  EXPECT_EQ(float_to_bf16(float_from_bits(0x3f808001)), 0x3f81);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(float_to_bf16(-std::numeric_limits<float>::infinity()), 0xff80);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(float_from_bits(0x7f800001)))));
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(float_from_bits(0xffffffff)))));
}

TEST(Checks, RefuseNegativeAndUnknownScalars) {
  expect_failure([] { check_bytes(-5); }, "-5");
  expect_failure([] { check_count(-7); }, "-7");
  expect_failure([] { check_device(2, 2); }, "device 2 does not exist; there are 2");
  expect_failure([] { check_device(-1, 2); }, "device -1");
  expect_failure([] { check_rank(4, 4, "root"); }, "root is 4; the communicator has the ranks 0 to 3");
  expect_failure([] { check_reduce_op(6); }, "reduction 6 is unknown");
  expect_failure([] { check_copy_kind(0); }, "copy kind 0 is unknown");
  expect_failure([] { check_comm_op(10); }, "operation 10 is unknown");
  expect_failure([] { check_not_null(nullptr, "request"); }, "request is null");
  check_bytes(0);
  check_device(1, 2);
}

TEST(Checks, RefuseCountsWhoseBytesOverflow) {
  expect_failure([] { element_bytes(INT64_MAX / 2, CONCORD_DTYPE_F64); }, "more bytes than 2^63");
  expect_failure([] { check_all_gather(buffer_a, buffer_b, INT64_MAX / 8, kF32, 0, 8); }, "more bytes than 2^63");
  expect_failure([] { check_all_gather(buffer_a, buffer_b, INT64_MAX / 4, kF32, 0, 8); }, "overflows");
  expect_failure(
      [] {
        check_buffer(buffer_a, INT64_MAX, "x");
        check_buffer(reinterpret_cast<void*>(UINTPTR_MAX), 2, "x");
      },
      "exceed the address space");
}

TEST(Checks, RefuseBadCopies) {
  check_copy(nullptr, nullptr, 0, CONCORD_COPY_HOST_TO_HOST);
  check_copy(buffer_a, buffer_b, 256, CONCORD_COPY_HOST_TO_DEVICE);
  expect_failure([] { check_copy(buffer_a, buffer_b, -1, 1); }, "bytes is -1");
  expect_failure([] { check_copy(nullptr, buffer_b, 4, 1); }, "destination is null");
  expect_failure([] { check_copy(buffer_a, nullptr, 4, 1); }, "source is null");
  expect_failure([] { check_copy(buffer_a, buffer_b, 4, 9); }, "copy kind 9");
  expect_failure([] { check_copy(buffer_a, buffer_a + 1, 8, 1); }, "overlap");
  expect_failure([] { check_fill(nullptr, 1); }, "destination is null");
}

TEST(Checks, RefuseBadReductions) {
  check_all_reduce(buffer_a, buffer_a, 64, kF32, kSum);  // in place
  check_all_reduce(nullptr, nullptr, 0, kF32, kSum);
  expect_failure([] { check_all_reduce(buffer_a, nullptr, 1, kF32, kSum); }, "recv is null");
  expect_failure([] { check_all_reduce(buffer_a, buffer_b, -1, kF32, kSum); }, "count is -1");
  expect_failure([] { check_all_reduce(buffer_a, buffer_b, 1, 99, kSum); }, "dtype 99");
  expect_failure([] { check_all_reduce(buffer_a, buffer_b, 1, kF32, 0); }, "reduction 0");
  expect_failure([] { check_all_reduce(buffer_a, buffer_a + 1, 2, kF32, kSum); }, "overlap");
  expect_failure([] { check_all_reduce(reinterpret_cast<char*>(buffer_a) + 2, buffer_b, 1, kF32, kSum); },
                 "aligned to f32");
  expect_failure([] { check_all_reduce(buffer_a, buffer_b, 1, CONCORD_DTYPE_BOOL, CONCORD_REDUCE_AVG); }, "avg of bool",
                 CONCORD_STATUS_UNIMPLEMENTED);
}

TEST(Checks, RootedOperationsNeedOnlyWhatTheRootNeeds) {
  check_reduce(buffer_a, nullptr, 8, kF32, kSum, 1, 0, 2);
  expect_failure([] { check_reduce(buffer_a, nullptr, 8, kF32, kSum, 0, 0, 2); }, "recv is null");
  check_broadcast(nullptr, buffer_b, 8, kF32, 1, 0, 2);
  expect_failure([] { check_broadcast(nullptr, buffer_b, 8, kF32, 0, 0, 2); }, "send is null");
  expect_failure([] { check_broadcast(buffer_a, buffer_b, 8, kF32, 2, 0, 2); }, "root is 2");
  expect_failure([] { check_broadcast(buffer_a, nullptr, -8, kF32, 1, 0, 2); }, "count is -8");
}

TEST(Checks, InPlaceIsAllowedWhereTheContractSaysAndNowhereElse) {
  check_all_gather(buffer_a + 8, buffer_a, 8, kF32, 1, 4);
  expect_failure([] { check_all_gather(buffer_a, buffer_a, 8, kF32, 1, 4); }, "overlap");
  check_reduce_scatter(buffer_a, buffer_a + 16, 8, kF32, kSum, 2, 4);
  expect_failure([] { check_reduce_scatter(buffer_a, buffer_a, 8, kF32, kSum, 2, 4); }, "overlap");
  expect_failure([] { check_all_to_all(buffer_a, buffer_a, 8, kF32, 4); }, "overlap");
  check_all_to_all(buffer_a, buffer_b, 8, kF32, 4);
}

TEST(Checks, AllToAllVLooksAtEveryPiece) {
  const int64_t counts[] = {2, 3};
  const int64_t offsets[] = {0, 10};
  const int64_t negative[] = {2, -3};
  const int64_t huge[] = {0, INT64_MAX};
  const int64_t between[] = {4, 6};
  check_all_to_all_v(buffer_a, counts, offsets, buffer_b, counts, offsets, kF32, 2);
  check_all_to_all_v(buffer_a, counts, offsets, buffer_a, counts, between, kF32, 2);
  expect_failure([&] { check_all_to_all_v(buffer_a, counts, offsets, buffer_a, counts, offsets, kF32, 2); }, "overlap");
  expect_failure([&] { check_all_to_all_v(buffer_a, nullptr, offsets, buffer_b, counts, offsets, kF32, 2); },
                 "send_counts is null");
  expect_failure([&] { check_all_to_all_v(buffer_a, counts, offsets, buffer_b, negative, offsets, kF32, 2); },
                 "recv_counts[1] is -3");
  expect_failure([&] { check_all_to_all_v(buffer_a, counts, huge, buffer_b, counts, offsets, kF32, 2); },
                 "send_offsets[1]");
}

TEST(Checks, BatchesAreCheckedItemByItem) {
  concord_p2p_item items[] = {{CONCORD_P2P_SEND, 0, buffer_a, 4, kF32, 0}, {CONCORD_P2P_RECV, 0, buffer_b, 4, kF32, 0}};
  check_batch_p2p(items, 2, 0, 2);
  check_batch_p2p(nullptr, 0, 0, 2);
  expect_failure([&] { check_batch_p2p(items, 1, 0, 2); }, "sends to itself 1 times more");
  expect_failure([&] { check_batch_p2p(nullptr, 1, 0, 2); }, "items is null");
  expect_failure([&] { check_batch_p2p(items, -1, 0, 2); }, "count is -1");
  for (auto& [change, part] :
       std::vector<std::pair<concord_p2p_item, const char*>>{{{3, 0, buffer_a, 4, kF32, 0}, "items[0].kind is 3"},
                                                             {{1, 2, buffer_a, 4, kF32, 0}, "a peer of the batch is 2"},
                                                             {{1, 1, nullptr, 4, kF32, 0}, "is null"},
                                                             {{1, 1, buffer_a, -4, kF32, 0}, "-4"},
                                                             {{1, 1, buffer_a, 4, 0, 0}, "dtype 0"},
                                                             {{1, 1, buffer_a, 4, kF32, 1}, "reserved is 1"}}) {
    expect_failure([&] { check_batch_p2p(&change, 1, 0, 2); }, part);
  }
}

TEST(Checks, SplitsNameDistinctRanksWithTheCallerAmongThem) {
  const int32_t good[] = {3, 1};
  const int32_t twice[] = {1, 1};
  const int32_t outside[] = {1, 4};
  check_split(good, 2, 1, 4);
  check_split(nullptr, 0, 1, 4);
  expect_failure([&] { check_split(good, 2, 0, 4); }, "not the caller's own, 0");
  expect_failure([&] { check_split(twice, 2, 1, 4); }, "rank 1 appears twice");
  expect_failure([&] { check_split(outside, 2, 1, 4); }, "is 4");
  expect_failure([&] { check_split(good, -1, 1, 4); }, "-1");
  expect_failure([&] { check_split(nullptr, 2, 1, 4); }, "ranks is null");
}

TEST(Checks, CommConfigReadsOnlyWhatItsSizeCovers) {
  concord_comm_config config{};
  config.struct_size = sizeof config;
  config.name = "grads";
  config.timeout_ms = 5;
  EXPECT_EQ(read_comm_config(&config).name, "grads");
  EXPECT_EQ(read_comm_config(&config).timeout_ms, 5);
  config.struct_size = offsetof(concord_comm_config, timeout_ms);
  EXPECT_EQ(read_comm_config(&config).timeout_ms, 30 * 60 * 1000);
  EXPECT_EQ(read_comm_config(nullptr).name, "comm");
  config.struct_size = 0;
  expect_failure([&] { read_comm_config(&config); }, "struct_size");
  config.struct_size = sizeof config;
  config.timeout_ms = -1;
  expect_failure([&] { read_comm_config(&config); }, "timeout_ms is -1");
  config.timeout_ms = 5;
  config.reserved = 3;
  expect_failure([&] { read_comm_config(&config); }, "reserved of the config is 3");
  expect_failure([] { check_init(0, 0, buffer_a, 128, 128); }, "world is 0");
  expect_failure([] { check_init(2, 2, buffer_a, 128, 128); }, "rank is 2");
  expect_failure([] { check_init(2, 1, buffer_a, 64, 128); }, "64 bytes");
  expect_failure([] { check_init(2, 1, nullptr, 128, 128); }, "unique id is null");
}

concord_rng_request request_of(concord_rng_kind kind, concord_dtype dtype, double low, double high) {
  concord_rng_request request{};
  request.struct_size = sizeof request;
  request.kind = kind;
  request.dtype = dtype;
  request.destination = buffer_a;
  request.count = 4;
  request.low = low;
  request.high = high;
  request.integer_high = 10;
  return request;
}

void expect_refused(const concord_rng_request& request, const char* part) {
  expect_failure([&] { read_rng_request(&request); }, part);
}

TEST(Checks, RngRequestsNeedAListedKindAndType) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  auto good = request_of(CONCORD_RNG_UNIFORM, kF32, 0, 1);
  read_rng_request(&good);
  expect_refused(request_of(CONCORD_RNG_UNIFORM, CONCORD_DTYPE_I32, 0, 1), "kind 2 and dtype i32");
  expect_refused(request_of(CONCORD_RNG_BITS, kF32, 0, 1), "kind 1 and dtype f32");
  expect_refused(request_of(5, kF32, 0, 1), "kind 5");
  expect_refused(request_of(CONCORD_RNG_UNIFORM, kF32, 1, 0), "from 1 to 0");
  expect_refused(request_of(CONCORD_RNG_UNIFORM, kF32, nan, 1), "finite");
  expect_refused(request_of(CONCORD_RNG_UNIFORM, kF32, 0, 1e39), "finite");
  expect_refused(request_of(CONCORD_RNG_NORMAL, kF32, 0, -1), "standard deviation -1");
  expect_refused(request_of(CONCORD_RNG_NORMAL, kF32, 0, nan), "finite");
  expect_failure([] { read_rng_request(nullptr); }, "request is null");
  good.struct_size = 8;
  expect_refused(good, "struct_size of the request is 8");
}

TEST(Checks, RngRequestsNeedAFittingRangeAndDestination) {
  auto integers = request_of(CONCORD_RNG_INTEGER, CONCORD_DTYPE_I32, 0, 0);
  read_rng_request(&integers);
  integers.integer_high = int64_t{1} << 31;
  read_rng_request(&integers);
  integers.integer_high = (int64_t{1} << 31) + 1;
  expect_refused(integers, "x must fit");
  integers.integer_high = integers.integer_low;
  expect_refused(integers, "integer_low must be below");
  auto good = request_of(CONCORD_RNG_UNIFORM, kF32, 0, 1);
  good.count = -1;
  expect_refused(good, "-1");
  good.count = 1;
  good.destination = nullptr;
  expect_refused(good, "destination is null");
  good.destination = reinterpret_cast<char*>(buffer_a) + 1;
  expect_refused(good, "aligned");
}

TEST(Checks, RngRequestsOfVersion10HaveNoRuns) {
  auto request = request_of(CONCORD_RNG_UNIFORM, kF32, 0, 1);
  request.run_length = 2;
  request.run_stride = 7;
  EXPECT_EQ(read_rng_request(&request).run_length, 2);
  EXPECT_EQ(read_rng_request(&request).run_stride, 7);
  request.struct_size = offsetof(concord_rng_request, run_length);
  EXPECT_EQ(read_rng_request(&request).run_length, 0);
  EXPECT_EQ(read_rng_request(&request).run_stride, 0);
  request.struct_size -= 1;
  expect_refused(request, "version 1.0 has");
}

TEST(Checks, RngRunsNeedALengthAndNoNegativeStride) {
  auto request = request_of(CONCORD_RNG_UNIFORM, kF32, 0, 1);
  request.run_stride = 7;
  expect_refused(request, "runs of length 0 with stride 7");
  request.run_length = -1;
  expect_refused(request, "runs of length -1");
  request.run_length = 1;
  request.run_stride = -1;
  expect_refused(request, "stride -1");
}

}  // namespace
}  // namespace concord::sdk
