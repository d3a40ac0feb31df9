#include "backends/cpu/machine.h"
#include "backends/cpu/testing/harness.h"

namespace concord::cpu::testing {
namespace {

TEST(Device, CountIsWhatWasAskedFor) {
  int32_t count = 0;
  EXPECT_OK(CALL(device, count, &count));
  EXPECT_EQ(count, kDevices);
}

TEST(Device, InfoNamesTheProcessorItsCoresAndItsMemory) {
  concord_device_info info{};
  info.struct_size = sizeof info;
  EXPECT_OK(CALL(device, info, kDevices - 1, &info));
  EXPECT_GE(info.multiprocessors, 1);
  EXPECT_EQ(info.total_memory, kMemoryLimit);
  EXPECT_STRNE(info.name, "");
  EXPECT_STRNE(info.architecture, "");
  EXPECT_STREQ(info.pci_bus_id, "");
  EXPECT_REFUSED(CALL(device, info, kDevices, &info), "device 3 does not exist");
  EXPECT_REFUSED(CALL(device, info, 0, nullptr), "null");
}

TEST(Device, InfoFillsOnlyWhatTheCallersStructHolds) {
  concord_device_info info{};
  info.struct_size = 8;
  info.total_memory = 12345;
  EXPECT_OK(CALL(device, info, 0, &info));
  EXPECT_GE(info.multiprocessors, 1);
  EXPECT_EQ(info.total_memory, 12345);
}

TEST(Device, CurrentDeviceBelongsToTheThread) {
  int32_t current = -1;
  EXPECT_OK(CALL(device, set_current, 2));
  std::thread([] {
    int32_t other = -1;
    EXPECT_OK(CALL(device, get_current, &other));
    EXPECT_EQ(other, 0);
    EXPECT_OK(CALL(device, set_current, 1));
  }).join();
  EXPECT_OK(CALL(device, get_current, &current));
  EXPECT_EQ(current, 2);
  EXPECT_REFUSED(CALL(device, set_current, 3), "device 3");
  EXPECT_OK(CALL(device, get_current, &current));
  EXPECT_EQ(current, 2) << "a refused call changes nothing";
  EXPECT_OK(CALL(device, set_current, 0));
}

TEST(Device, PeersReachEachOther) {
  int32_t can = 0;
  EXPECT_OK(CALL(device, can_access_peer, 0, 1, &can));
  EXPECT_EQ(can, 1);
  EXPECT_OK(CALL(device, enable_peer_access, 0, 1));
  EXPECT_OK(CALL(device, enable_peer_access, 0, 1));
  EXPECT_REFUSED(CALL(device, can_access_peer, 0, 3, &can), "device 3");
  EXPECT_REFUSED(CALL(device, synchronize, 7), "device 7");
}

TEST(Machine, KnowsTheInstructionsForBf16OfBothArchitectures) {
  EXPECT_TRUE(lists_bf16_instructions("fpu avx512f avx512_bf16 wbnoinvd"));
  EXPECT_TRUE(lists_bf16_instructions("fpu amx_bf16"));
  EXPECT_TRUE(lists_bf16_instructions("fp asimd i8mm bf16 dgh"));
  EXPECT_FALSE(lists_bf16_instructions("fpu avx2 avx512f avx512_vnni"));
  EXPECT_FALSE(lists_bf16_instructions("fp asimd asimdhp svebf16 ebf16"));
  EXPECT_FALSE(lists_bf16_instructions(""));
}

}  // namespace
}  // namespace concord::cpu::testing
