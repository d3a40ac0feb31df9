#include "backends/ascend/sim/runtime/memory/memory.h"

#include <csignal>
#include <cstring>

#include "backends/ascend/sim/runtime/testing/sim_test.h"
#include "platform/base/sanitizer.hpp"

namespace concord::ascend::sim::testing {
namespace {

class MemoryTest : public SimTest {
 protected:
  static size_t free_bytes() {
    size_t free = 0;
    size_t total = 0;
    EXPECT_OK(aclrtGetMemInfo(kHbmMem, &free, &total));
    EXPECT_EQ(total, kMemory);
    return free;
  }
};

TEST_F(MemoryTest, AnAllocationOfNothingIsRefused) {
  void* address = &address;
  EXPECT_FAILS(aclrtMalloc(&address, 0, kMallocHugeFirst), kAclInvalidParam, "0 bytes");
  EXPECT_EQ(address, nullptr);
  EXPECT_EQ(aclrtMalloc(nullptr, 64, kMallocHugeFirst), kAclInvalidParam);
  EXPECT_EQ(aclrtMallocHost(&address, 0), kAclInvalidParam);
  EXPECT_FAILS(aclrtMalloc(&address, 64, static_cast<aclrtMemMallocPolicy>(99)), kRtInvalidMallocType, "policy 99");
}

TEST_F(MemoryTest, AllocationsAreAlignedAndCounted) {
  const size_t before = free_bytes();
  void* first = device_memory(1);
  void* second = device_memory(1000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(second) % 64, 0u);
  EXPECT_EQ(before - free_bytes(), 512u + 1024u);
  EXPECT_OK(aclrtFree(first));
  EXPECT_OK(aclrtFree(second));
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(MemoryTest, MoreThanThereIsComesBackAsTheVendorsCode) {
  void* address = nullptr;
  EXPECT_FAILS(aclrtMalloc(&address, kMemory + 1, kMallocHugeFirst), kRtMemoryAllocation, "too much for device 0");
  EXPECT_EQ(address, nullptr);
  EXPECT_EQ(aclrtMalloc(&address, ~size_t{0}, kMallocHugeFirst), kRtMemoryAllocation);
  void* all = device_memory(kMemory);
  EXPECT_EQ(aclrtMalloc(&address, 1, kMallocHugeFirst), kRtMemoryAllocation);
  EXPECT_OK(aclrtFree(all));
  EXPECT_OK(aclrtFree(device_memory(kMemory)));
}

TEST_F(MemoryTest, AWholeDeviceCanBeAllocatedInPiecesAgainAndAgain) {
  for (int round = 0; round < 6; ++round) {
    std::vector<void*> blocks;
    for (int i = 0; i < 64; ++i) blocks.push_back(device_memory(kMemory / 64));
    EXPECT_EQ(free_bytes(), 0u);
    for (size_t i = 0; i < blocks.size(); i += 2) EXPECT_OK(aclrtFree(blocks[i]));
    for (size_t i = 1; i < blocks.size(); i += 2) EXPECT_OK(aclrtFree(blocks[i]));
  }
  EXPECT_EQ(free_bytes(), kMemory);
}

TEST_F(MemoryTest, NewMemoryHoldsNoZeros) {
  void* address = device_memory(4096);
  for (const float value : read_back<float>(address, 1024)) EXPECT_NE(value, value) << "not NaN";
  EXPECT_OK(aclrtMemset(address, 4096, 0, 4096));
  EXPECT_OK(aclrtFree(address));
  for (const float value : read_back<float>(device_memory(4096), 1024)) EXPECT_NE(value, value) << "not NaN";
}

TEST_F(MemoryTest, FreedMemoryIsPoisoned) {
  auto* address = static_cast<int32_t*>(device_memory(64));
  write_word(address, 7);
  auto* bytes = static_cast<int32_t*>(concord_sim_translate(address));
  EXPECT_EQ(*bytes, 7);
  EXPECT_OK(aclrtFree(address));
  EXPECT_EQ(*bytes, -1);
}

TEST_F(MemoryTest, FreeingTwiceOrWhatIsNotThereIsRefused) {
  void* address = device_memory(1024);
  EXPECT_FAILS(aclrtFree(static_cast<char*>(address) + 64), kRtParamInvalid, "not its beginning");
  EXPECT_OK(aclrtFree(address));
  EXPECT_FAILS(aclrtFree(address), kRtParamInvalid, "was freed");
  EXPECT_FAILS(aclrtFree(nullptr), kAclInvalidParam, "is null");
  int32_t word = 0;
  EXPECT_FAILS(aclrtFree(&word), kRtParamInvalid, "not a device address");
  void* pinned = nullptr;
  ASSERT_OK(aclrtMallocHost(&pinned, 64));
  EXPECT_FAILS(aclrtFree(pinned), kRtParamInvalid, "aclrtFreeHost");
  EXPECT_OK(aclrtFreeHost(pinned));
  EXPECT_FAILS(aclrtFreeHost(pinned), kRtParamInvalid, "was freed");
  EXPECT_EQ(aclrtFreeHost(nullptr), kAclInvalidParam);
}

TEST_F(MemoryTest, WritingBehindTheEndIsFoundWhenItIsFreed) {
  void* address = device_memory(100);
  static_cast<char*>(concord_sim_translate(address))[100] = 1;
  EXPECT_FAILS(aclrtFree(address), kRtDeviceMemError, "wrote past the end of the 100 bytes");
  EXPECT_FAILS(aclrtFree(address), kRtParamInvalid, "was freed");
}

using MemoryDeathTest = MemoryTest;

TEST_F(MemoryDeathTest, TheHostCannotTouchDeviceMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto* address = static_cast<volatile int32_t*>(device_memory(64));
#if CONCORD_UNDER_ASAN || CONCORD_UNDER_TSAN
  EXPECT_DEATH(*address = 1, "");
#else
  EXPECT_EXIT(*address = 1, ::testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT(std::exit(*address), ::testing::KilledBySignal(SIGSEGV), "");
#endif
}

// -------------------------------------------------------------------------------------------------------------- copies

TEST_F(MemoryTest, ACopyWantsItsAddressesWhereItsKindSays) {
  void* device = device_memory(64);
  int32_t host = 5;
  EXPECT_FAILS(aclrtMemcpy(&host, 4, &host, 4, kMemcpyHostToDevice), kRtParamInvalid, "needs a device address as dst");
  EXPECT_FAILS(aclrtMemcpy(device, 4, device, 4, kMemcpyDeviceToHost), kRtParamInvalid, "needs a host address as dst");
  EXPECT_FAILS(aclrtMemcpy(&host, 4, &host, 4, kMemcpyDeviceToDevice), kRtParamInvalid,
               "needs a device address as src");
  EXPECT_FAILS(aclrtMemcpy(device, 4, &host, 4, static_cast<aclrtMemcpyKind>(9)), kRtParamInvalid, "kind 9");
  EXPECT_OK(aclrtMemcpy(device, 4, &host, 4, kMemcpyDefault));
  host = 0;
  EXPECT_OK(aclrtMemcpy(&host, 4, device, 4, kMemcpyDefault));
  EXPECT_EQ(host, 5);
  EXPECT_EQ(aclrtMemcpy(nullptr, 4, &host, 4, kMemcpyHostToDevice), kAclInvalidParam);
  EXPECT_EQ(aclrtMemcpy(device, 4, nullptr, 4, kMemcpyHostToDevice), kAclInvalidParam);
}

TEST_F(MemoryTest, ACopyStaysInsideItsAllocations) {
  auto* device = static_cast<char*>(device_memory(64));
  char host[128] = {};
  EXPECT_FAILS(aclrtMemcpy(device, 32, host, 33, kMemcpyHostToDevice), kRtParamInvalid, "do not fit");
  EXPECT_FAILS(aclrtMemcpy(device, 128, host, 65, kMemcpyHostToDevice), kRtParamInvalid, "more than the 64");
  EXPECT_FAILS(aclrtMemcpy(device + 60, 128, host, 8, kMemcpyHostToDevice), kRtParamInvalid, "more than the 4");
  EXPECT_FAILS(aclrtMemcpy(host, 128, device + 64, 1, kMemcpyDeviceToHost), kRtParamInvalid, "nothing is allocated");
  EXPECT_OK(aclrtMemcpy(device + 60, 4, host, 4, kMemcpyHostToDevice));
  EXPECT_OK(aclrtFree(device));
  EXPECT_FAILS(aclrtMemcpy(host, 128, device, 4, kMemcpyDeviceToHost), kRtParamInvalid, "was freed");
  EXPECT_FAILS(aclrtMemset(device, 64, 0, 64), kRtParamInvalid, "was freed");
}

TEST_F(MemoryTest, ACopyOfNothingIsFine) {
  TestStream stream;
  char host = 0;
  void* device = device_memory(64);
  EXPECT_OK(aclrtMemcpy(device, 0, &host, 0, kMemcpyHostToDevice));
  EXPECT_OK(aclrtMemcpyAsync(device, 0, &host, 0, kMemcpyHostToDevice, stream));
  EXPECT_OK(aclrtMemset(device, 0, 0, 0));
  EXPECT_OK(aclrtMemsetAsync(device, 0, 0, 0, stream));
}

TEST_F(MemoryTest, ASynchronousCopyDoesNotWaitForStreams) {
  TestStream stream;
  Gate gate;
  void* device = device_memory(64);
  write_word(device, 1);
  gate.hold(stream);
  queue_word(device, 2, stream);
  EXPECT_EQ(read_word(device), 1);
  gate.open();
  EXPECT_OK(aclrtSynchronizeStream(stream));
  EXPECT_EQ(read_word(device), 2);
}

TEST_F(MemoryTest, AnAsynchronousCopyIsOneWithPinnedMemoryOnly) {
  TestStream stream;
  Gate gate;
  void* device = device_memory(64);
  void* pinned = nullptr;
  ASSERT_OK(aclrtMallocHost(&pinned, 64));
  std::memset(pinned, 0, 64);
  write_word(device, 9);
  gate.hold(stream);
  EXPECT_OK(aclrtMemcpyAsync(pinned, 64, device, 64, kMemcpyDeviceToHost, stream));
  EXPECT_EQ(*static_cast<int32_t*>(pinned), 0);
  EXPECT_FALSE(stream_done(stream));
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    gate.open();
  });
  int32_t pageable = 0;  // waits for the stream, and so for the gate
  EXPECT_OK(aclrtMemcpyAsync(&pageable, 4, device, 4, kMemcpyDeviceToHost, stream));
  EXPECT_EQ(pageable, 9);
  EXPECT_EQ(*static_cast<int32_t*>(pinned), 9);
  opener.join();
  EXPECT_OK(aclrtFreeHost(pinned));
}

TEST_F(MemoryTest, RegisteredHostMemoryIsPinned) {
  TestStream stream;
  Gate gate;
  void* device = device_memory(64);
  write_word(device, 9);
  std::vector<int32_t> host(16, 0);
  void* seen = nullptr;
  ASSERT_OK(aclrtHostRegister(host.data(), 64, 0, &seen));
  gate.hold(stream);
  EXPECT_OK(aclrtMemcpyAsync(host.data(), 64, device, 64, kMemcpyDeviceToHost, stream));
  EXPECT_EQ(host[0], 0);
  gate.open();
  EXPECT_OK(aclrtSynchronizeStream(stream));
  EXPECT_EQ(host[0], 9);
  EXPECT_OK(aclrtHostUnregister(host.data()));
  EXPECT_FAILS(aclrtHostUnregister(host.data()), kRtParamInvalid, "not registered");
}

TEST_F(MemoryTest, AnAsynchronousCopyFromHostToHostIsUnsupported) {
  TestStream stream;
  int32_t a = 1;
  int32_t b = 2;
  EXPECT_FAILS(aclrtMemcpyAsync(&a, 4, &b, 4, kMemcpyHostToHost, stream), kRtFeatureNotSupport, "host to host");
  EXPECT_EQ(aclrtMemcpyAsync(&a, 4, &b, 4, kMemcpyDefault, stream), kRtFeatureNotSupport);
  EXPECT_OK(aclrtMemcpy(&a, 4, &b, 4, kMemcpyHostToHost));
  EXPECT_EQ(a, 2);
}

TEST_F(MemoryTest, FreeDoesNotWaitAndTheStreamFindsOut) {
  TestStream stream;
  Gate gate;
  void* from = device_memory(64);
  void* to = device_memory(64);
  gate.hold(stream);
  EXPECT_OK(aclrtMemcpyAsync(to, 64, from, 64, kMemcpyDeviceToDevice, stream));
  EXPECT_OK(aclrtFree(from));
  gate.open();
  EXPECT_FAILS(aclrtSynchronizeStream(stream), kRtDeviceMemError, "was freed");
}

TEST_F(MemoryTest, AttributesTellWhereAnAddressIs) {
  ASSERT_OK(aclrtSetDevice(1));
  char* device = static_cast<char*>(device_memory(64));
  void* pinned = nullptr;
  ASSERT_OK(aclrtMallocHost(&pinned, 64));
  int local = 0;
  aclrtPtrAttributes attributes{};
  EXPECT_OK(aclrtPointerGetAttributes(device + 5, &attributes));
  EXPECT_EQ(attributes.location.type, kLocationDevice);
  EXPECT_EQ(attributes.location.id, 1u);
  EXPECT_OK(aclrtPointerGetAttributes(pinned, &attributes));
  EXPECT_EQ(attributes.location.type, kLocationHost);
  EXPECT_OK(aclrtPointerGetAttributes(&local, &attributes));
  EXPECT_EQ(attributes.location.type, kLocationUnregistered);
  EXPECT_OK(aclrtFreeHost(pinned));
}

// ----------------------------------------------------------------------------------------------------- reserved ranges

class RangeTest : public MemoryTest {
 protected:
  static constexpr size_t kPiece = size_t{2} << 20;
  void* piece() {
    aclrtPhysicalMemProp properties{};
    properties.location = {0, kLocationDevice};
    void* handle = nullptr;
    EXPECT_OK(aclrtMallocPhysical(&handle, kPiece, &properties, 0));
    return handle;
  }
};

TEST_F(RangeTest, PiecesMappedSideBySideAreOneRange) {
  const size_t before = free_bytes();
  void* range = nullptr;
  ASSERT_OK(aclrtReserveMemAddress(&range, 4 * kPiece, 0, nullptr, 0));
  EXPECT_EQ(free_bytes(), before);
  void* first = piece();
  void* second = piece();
  EXPECT_EQ(before - free_bytes(), 2 * kPiece);
  auto* at = static_cast<char*>(range);
  ASSERT_OK(aclrtMapMem(at, kPiece, 0, first, 0));
  ASSERT_OK(aclrtMapMem(at + kPiece, kPiece, 0, second, 0));
  EXPECT_EQ(read_word(at), -1) << "new memory holds no zeros";
  EXPECT_OK(aclrtMemset(at, 2 * kPiece, 3, 2 * kPiece));
  EXPECT_EQ(read_back<char>(at + kPiece - 1, 2), (std::vector<char>{3, 3}));
  EXPECT_FAILS(aclrtMemset(at, 4 * kPiece, 3, 3 * kPiece), kRtParamInvalid, "nothing is mapped");
  EXPECT_FAILS(aclrtMapMem(at + kPiece, kPiece, 0, first, 0), kRtParamInvalid, "mapped at");
  EXPECT_FAILS(aclrtReleaseMemAddress(at), kRtParamInvalid, "still has memory");

  EXPECT_OK(aclrtUnmapMem(at + kPiece));
  EXPECT_FAILS(aclrtMemset(at + kPiece, 1, 0, 1), kRtParamInvalid, "nothing is mapped");
  EXPECT_OK(aclrtMapMem(at + 3 * kPiece, kPiece, 0, second, 0));  // the same memory elsewhere
  EXPECT_EQ(read_back<char>(at + 3 * kPiece, 1)[0], 3);
  EXPECT_OK(aclrtUnmapMem(at + 3 * kPiece));
  EXPECT_OK(aclrtUnmapMem(at));
  EXPECT_OK(aclrtFreePhysical(first));
  EXPECT_OK(aclrtFreePhysical(second));
  EXPECT_FAILS(aclrtFreePhysical(second), kRtInvalidHandle, "was destroyed");
  EXPECT_EQ(free_bytes(), before);
  EXPECT_OK(aclrtReleaseMemAddress(range));
  EXPECT_FAILS(aclrtReleaseMemAddress(range), kRtParamInvalid, "is not the beginning of a reserved range");
}

}  // namespace
}  // namespace concord::ascend::sim::testing
