#include "backends/cpu/testing/harness.h"

#include <cstring>
#include <vector>

namespace concord::cpu::testing {
namespace {

constexpr concord_copy_kind kHostToDevice = CONCORD_COPY_HOST_TO_DEVICE;

char* allocate(int32_t on, int64_t bytes) {
  void* pointer = nullptr;
  EXPECT_OK(CALL(memory, allocate, on, bytes, &pointer));
  return static_cast<char*>(pointer);
}

void release(int32_t on, void* pointer) { EXPECT_OK(CALL(memory, release, on, pointer)); }

concord_pointer_info describe(const void* pointer) {
  concord_pointer_info info{};
  info.struct_size = sizeof info;
  EXPECT_OK(CALL(memory, describe_pointer, pointer, &info));
  return info;
}

int64_t used(int32_t on) {
  int64_t free = 0, total = 0;
  EXPECT_OK(CALL(memory, info, on, &free, &total));
  EXPECT_EQ(total, kMemoryLimit);
  return total - free;
}

TEST(Memory, BlocksAreAlignedAndUsableToTheirEnds) {
  for (int64_t bytes : {1, 63, 64, 4097, 1 << 20, (4 << 20) + 1}) {
    char* pointer = allocate(0, bytes);
    ASSERT_NE(pointer, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pointer) % 64, 0u) << bytes;
    std::memset(pointer, 7, static_cast<size_t>(bytes));
    release(0, pointer);
  }
}

TEST(Memory, ZeroBytesGiveNullAndNullMayBeReleased) {
  EXPECT_EQ(allocate(0, 0), nullptr);
  release(0, nullptr);
  EXPECT_OK(CALL(memory, release_host, nullptr));
  void* pinned = &pinned;
  EXPECT_OK(CALL(memory, allocate_host, 0, &pinned));
  EXPECT_EQ(pinned, nullptr);
  EXPECT_OK(CALL(memory, copy, nullptr, nullptr, 0, kHostToDevice));
  EXPECT_OK(CALL(memory, fill_on_stream, nullptr, 1, 0, nullptr));
}

TEST(Memory, ReleaseRefusesWhatIsNoLiveBlockOfThatDevice) {
  char* pointer = allocate(1, 100);
  int local = 0;
  EXPECT_REFUSED(CALL(memory, release, 0, pointer), "memory of device 1; it was released as memory of device 0");
  EXPECT_REFUSED(CALL(memory, release_host, pointer), "released as pinned host memory");
  EXPECT_REFUSED(CALL(memory, release, 1, pointer + 1), "not a live block");
  EXPECT_REFUSED(CALL(memory, release, 1, &local), "not a live block");
  release(1, pointer);
  EXPECT_REFUSED(CALL(memory, release, 1, pointer), "already released");
  EXPECT_REFUSED(CALL(memory, release, 3, nullptr), "device 3");
}

TEST(Memory, PointersAreDescribedToTheLastByteAndNotBeyond) {
  char* pointer = allocate(2, 1000);
  for (const char* inside : {pointer, pointer + 500, pointer + 999}) {
    EXPECT_EQ(describe(inside).kind, CONCORD_MEMORY_DEVICE);
    EXPECT_EQ(describe(inside).device, 2);
  }
  EXPECT_EQ(describe(pointer + 1000).kind, CONCORD_MEMORY_UNKNOWN);
  EXPECT_EQ(describe(pointer - 1).kind, CONCORD_MEMORY_UNKNOWN);
  release(2, pointer);
  EXPECT_EQ(describe(pointer).kind, CONCORD_MEMORY_UNKNOWN);
  void* pinned = nullptr;
  ASSERT_OK(CALL(memory, allocate_host, 10, &pinned));
  EXPECT_EQ(describe(pinned).kind, CONCORD_MEMORY_PINNED_HOST);
  EXPECT_EQ(describe(pinned).device, -1);
  EXPECT_OK(CALL(memory, release_host, pinned));
  EXPECT_EQ(describe(nullptr).kind, CONCORD_MEMORY_UNKNOWN);
  EXPECT_EQ(describe(&pinned).device, -1);
}

TEST(Memory, DescribeFillsOnlyWhatTheCallersStructHolds) {
  concord_pointer_info info{8, 77, 88, 99};
  EXPECT_OK(CALL(memory, describe_pointer, nullptr, &info));
  EXPECT_EQ(info.kind, CONCORD_MEMORY_UNKNOWN);
  EXPECT_EQ(info.device, 88);
  EXPECT_REFUSED(CALL(memory, describe_pointer, nullptr, nullptr), "null");
  info.struct_size = 0;
  EXPECT_REFUSED(CALL(memory, describe_pointer, nullptr, &info), "struct_size");
}

TEST(Memory, TooMuchIsOutOfMemoryWithWhatWasAskedAndWhatIsFree) {
  void* pointer = &pointer;
  const int64_t before = used(0);
  EXPECT_FAILS(CALL(memory, allocate, 0, kMemoryLimit + 1, &pointer), CONCORD_STATUS_OUT_OF_MEMORY, "1073741825 bytes");
  EXPECT_EQ(pointer, nullptr);
  EXPECT_FAILS(CALL(memory, allocate, 0, INT64_MAX, &pointer), CONCORD_STATUS_OUT_OF_MEMORY, "free");
  EXPECT_FAILS(CALL(memory, allocate_host, INT64_MAX, &pointer), CONCORD_STATUS_OUT_OF_MEMORY, "pinned host memory");
  EXPECT_FAILS(CALL(memory, allocate_on_stream, 0, INT64_MAX, nullptr, &pointer), CONCORD_STATUS_OUT_OF_MEMORY,
               "device 0");
  EXPECT_EQ(used(0), before);
  EXPECT_REFUSED(CALL(memory, allocate, 0, -1, &pointer), "bytes is -1");
  EXPECT_REFUSED(CALL(memory, allocate, -1, 1, &pointer), "device -1");
  EXPECT_REFUSED(CALL(memory, allocate, 0, 1, nullptr), "null");
}

TEST(Memory, EachDeviceHasItsOwnAccount) {
  const int64_t before_0 = used(0), before_1 = used(1);
  char* pointer = allocate(0, 1000000);
  EXPECT_EQ(used(0), before_0 + 1000000);
  EXPECT_EQ(used(1), before_1);
  release(0, pointer);
  EXPECT_EQ(used(0), before_0);
}

TEST(Memory, CopiesAndFillsRunInTheOrderOfTheirStream) {
  Gate gate;
  const TestStream s;
  std::vector<char> from(1000, 'a'), to(1000, '?');
  char* on_device = allocate(0, 1000);
  gate.block(s);
  EXPECT_OK(CALL(memory, fill_on_stream, on_device, 0x1ff00 + 'z', 1000, s));  // only the low 8 bits count
  EXPECT_OK(CALL(memory, copy_on_stream, on_device, from.data(), 500, kHostToDevice, s));
  EXPECT_OK(CALL(memory, copy_on_stream, to.data(), on_device, 1000, CONCORD_COPY_DEVICE_TO_HOST, s));
  give_others_time();
  EXPECT_EQ(to[0], '?');
  gate.open();
  EXPECT_OK(s.synchronize());
  EXPECT_EQ(std::string(to.begin(), to.end()), std::string(500, 'a') + std::string(500, 'z'));
  release(0, on_device);
}

TEST(Memory, CopyIsDoneWhenItReturns) {
  char from[] = "done", to[5] = {};
  EXPECT_OK(CALL(memory, copy, to, from, 5, CONCORD_COPY_HOST_TO_HOST));
  EXPECT_STREQ(to, "done");
}

TEST(Memory, PeerCopiesNeedTheDevicesOfTheirPointersAndAStreamOfEither) {
  char* source = allocate(0, 64);
  char* destination = allocate(1, 64);
  std::memset(source, 5, 64);
  std::memset(destination, 0, 64);
  const TestStream on_0(0), on_1(1), on_2(2);
  EXPECT_OK(CALL(memory, copy_peer_on_stream, destination, 1, source, 0, 32, on_1));
  EXPECT_OK(CALL(memory, copy_peer_on_stream, destination + 32, 1, source + 32, 0, 32, on_0));
  EXPECT_OK(on_0.synchronize());
  EXPECT_OK(on_1.synchronize());
  EXPECT_EQ(std::memcmp(source, destination, 64), 0);
  EXPECT_REFUSED(CALL(memory, copy_peer_on_stream, destination, 1, source, 0, 64, on_2),
                 "the stream belongs to device 2");
  EXPECT_REFUSED(CALL(memory, copy_peer_on_stream, destination, 0, source, 0, 64, on_0), "is on device 1");
  EXPECT_REFUSED(CALL(memory, copy_peer_on_stream, destination, 1, source, 4, 64, on_0), "device 4");
  release(0, source);
  release(1, destination);
}

TEST(Memory, StreamOrderedReleaseKeepsTheBlockUntilTheStreamIsThere) {
  const int64_t before = used(0);
  Gate gate;
  const TestStream s;
  const TestStream other(1);
  void* pointer = nullptr;
  ASSERT_OK(CALL(memory, allocate_on_stream, 0, 4096, s, &pointer));
  EXPECT_EQ(describe(pointer).kind, CONCORD_MEMORY_DEVICE);
  gate.block(s);
  EXPECT_OK(CALL(memory, fill_on_stream, pointer, 1, 4096, s));
  EXPECT_REFUSED(CALL(memory, release_on_stream, 0, pointer, other), "the stream belongs to device 1");
  EXPECT_OK(CALL(memory, release_on_stream, 0, pointer, s));
  EXPECT_REFUSED(CALL(memory, release_on_stream, 0, pointer, s), "already released");
  EXPECT_REFUSED(CALL(memory, release, 0, pointer), "already released");
  EXPECT_EQ(used(0), before + 4096);
  gate.open();
  EXPECT_OK(s.synchronize());
  EXPECT_EQ(used(0), before);
  EXPECT_REFUSED(CALL(memory, allocate_on_stream, 0, 8, other, &pointer), "the stream belongs to device 1");
}

TEST(Memory, WrongArgumentsAreRefused) {
  char a[8], b[8];
  int64_t number = 0;
  EXPECT_REFUSED(CALL(memory, copy, a, b, -1, kHostToDevice), "bytes is -1");
  EXPECT_REFUSED(CALL(memory, copy, nullptr, b, 1, kHostToDevice), "destination is null");
  EXPECT_REFUSED(CALL(memory, copy, a, nullptr, 1, kHostToDevice), "source is null");
  EXPECT_REFUSED(CALL(memory, copy, a, b, 1, 0), "copy kind 0");
  EXPECT_REFUSED(CALL(memory, copy, a, a + 4, 8, kHostToDevice), "overlap");
  EXPECT_REFUSED(CALL(memory, fill_on_stream, nullptr, 1, 1, nullptr), "destination is null");
  EXPECT_REFUSED(CALL(memory, fill_on_stream, a, 1, -1, nullptr), "bytes is -1");
  EXPECT_REFUSED(CALL(memory, info, 0, nullptr, &number), "out_free");
  EXPECT_REFUSED(CALL(memory, info, 0, &number, nullptr), "out_total");
  EXPECT_REFUSED(CALL(memory, info, 3, &number, &number), "device 3");
}

TEST(Memory, ManyThreadsAllocateAndReleaseAtOnce) {
  const int64_t before = used(0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 1; i < 500; ++i) {
        char* pointer = allocate(0, i);
        std::memset(pointer, t, static_cast<size_t>(i));
        EXPECT_EQ(describe(pointer + i - 1).kind, CONCORD_MEMORY_DEVICE);
        release(0, pointer);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(used(0), before);
}

}  // namespace
}  // namespace concord::cpu::testing
