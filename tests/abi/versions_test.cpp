// Old plugins under a new host, new plugins under an old host, both in one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "platform/cpp/concord.hpp"
#include "tests/abi/test_plugins.h"

namespace {

using namespace concord;
using test::plugin_path;
using testing::HasSubstr;

TEST(Versions, TheFrozenPluginOfVersionOneZeroLoadsAndWorks) {
  const Platform platform = open_platform(plugin_path("frozen"));
  EXPECT_EQ(platform.name(), "frozen");
  EXPECT_EQ(loader::to_string(platform.abi_version()), "1.0");
  ASSERT_EQ(platform.device_count(), 1);
  const Device device(platform, 0);
  EXPECT_STREQ(device.info().name, "frozen device");
  const Stream stream(device);
  const Communicator comm(device, 1, 0, create_unique_id(platform));
  const Buffer send(device, 12);
  const Buffer recv(device, 12);
  const float values[] = {1, 2, 3};
  std::memcpy(send.data(), values, sizeof values);
  comm.all_reduce(stream, send.data(), recv.data(), 3, DType::kF32, ReduceOp::kSum);
  stream.synchronize();
  EXPECT_EQ(std::memcmp(recv.data(), values, sizeof values), 0);
}

TEST(Versions, OptionalSlotsThatTheFrozenPluginLacksAreUnimplementedAndSayWhose) {
  const Platform platform = open_platform(plugin_path("frozen"));
  const Stream stream(Device(platform, 0));
  try {
    stream.launch_host([](void*) {}, nullptr);
    FAIL() << "launch_host of the frozen plugin is null";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), CONCORD_STATUS_UNIMPLEMENTED);
    EXPECT_EQ(error.detail(), "plugin 'frozen' (ABI 1.0) does not implement stream.launch_host");
    EXPECT_EQ(error.call(), "stream.launch_host");
  }
}

TEST(Versions, StubsOfTwoPluginsNameEachItsOwn) {
  const Platform frozen = open_platform(plugin_path("frozen"));
  const Platform sample = open_platform(plugin_path("sample"));
  for (const Platform& platform : {frozen, sample}) {
    int32_t can = 0;
    const concord_device_table& table = platform.tables().device;
    EXPECT_EQ(table.can_access_peer(table.self, 0, 0, &can), CONCORD_STATUS_UNIMPLEMENTED);
    EXPECT_THAT(loader::take_error_detail(), HasSubstr("plugin '" + std::string(platform.name()) + "'"));
  }
}

TEST(Versions, NoSlotOfAnyTableIsNullAfterLoading) {
  for (const char* name : {"frozen", "sample", "fine_newer_minor", "fine_without_the_last_optional_slot"}) {
    loader::Tables tables = open_platform(plugin_path(name)).tables();
    tables.for_each([&]<class Table>(Table& table) {
      loader::TableTraits<Table>::for_each_slot([&]<auto Member>(loader::Slot<Member>) {
        EXPECT_NE(table.*Member, nullptr) << name << ": " << loader::Slot<Member>::kInfo.name;
      });
    });
  }
}

TEST(Versions, PluginOfANewerMinorWithABiggerTableLoads) {
  const Platform platform = open_platform(plugin_path("fine_newer_minor"));
  EXPECT_EQ(platform.abi_version().minor, CONCORD_ABI_MINOR + 1);
  const Stream stream(Device(platform, 0));
  Generator(7).bits(stream, nullptr, 0, DType::kI32);
}

TEST(Versions, TableThatThisHostHasNeverHeardOfIsFoundByItsName) {
  const Platform platform = open_platform(plugin_path("fine_newer_minor"));
  const concord_table_header* table = platform.find_table("acme.hologram");
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(table->minor, 7);
  EXPECT_EQ(platform.find_table("acme.teleport"), nullptr);
}

TEST(Versions, TableThatEndsBeforeAnOptionalSlotGetsItsStub) {
  const Platform platform = open_platform(plugin_path("fine_without_the_last_optional_slot"));
  const Stream stream(Device(platform, 0));
  EXPECT_THAT(test::error_of([&] { stream.launch_host([](void*) {}, nullptr); }),
              HasSubstr("does not implement stream.launch_host"));
}

TEST(Versions, OneFileIsOpenedOnceWhateverItsNames) {
  test::ScratchFolder folder;
  folder.link_plugin("sample");
  std::filesystem::create_hard_link(plugin_path("sample"), folder.file("libconcord_hard.so"));
  const Platform direct = open_platform(plugin_path("sample"));
  EXPECT_EQ(direct, open_platform(folder.file("libconcord_sample.so")));
  EXPECT_EQ(direct, open_platform(folder.file("libconcord_hard.so")));
  EXPECT_NE(direct, open_platform(plugin_path("frozen")));
}

}  // namespace
