// A program of its own, because a plugin that opened stays open. One test, in the order of a process's life: opens that
// fail with a message, then one that does not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "platform/sdk/testing/test_host.hpp"

namespace concord::cpu {
namespace {

using ::testing::HasSubstr;

TEST(Settings, BadValuesFailTheOpenWithASentenceAndGoodOnesCount) {
  sdk::TestHost::set_config("cpu.devices", "0");
  sdk::TestHost host(CONCORD_TEST_PLUGIN);
  for (const char* bad : {"0", "-1", "65", "two", "", "3x", "99999999999999999999"}) {
    sdk::TestHost::set_config("cpu.devices", bad);
    EXPECT_EQ(host.reopen(), CONCORD_STATUS_INVALID_ARGUMENT) << bad;
    EXPECT_EQ(host.plugin(), nullptr);
    EXPECT_THAT(sdk::TestHost::detail(), HasSubstr("cpu.devices is \"" + std::string(bad) + "\""));
  }
  sdk::TestHost::set_config("cpu.devices", "64");
  for (const char* bad : {"0", "-5", "", "G", "8GB", "8 G", "9999999999G", "0x10"}) {
    sdk::TestHost::set_config("cpu.memory_limit", bad);
    EXPECT_EQ(host.reopen(), CONCORD_STATUS_INVALID_ARGUMENT) << bad;
    EXPECT_THAT(sdk::TestHost::detail(), HasSubstr("cpu.memory_limit is \"" + std::string(bad) + "\""));
  }
  sdk::TestHost::set_config("cpu.memory_limit", "3M");
  ASSERT_EQ(host.reopen(), CONCORD_STATUS_OK) << sdk::TestHost::detail();
  int32_t count = 0;
  EXPECT_EQ(host.device().count(host.device().self, &count), CONCORD_STATUS_OK);
  EXPECT_EQ(count, 64);
  int64_t free = 0, total = 0;
  EXPECT_EQ(host.memory().info(host.memory().self, 63, &free, &total), CONCORD_STATUS_OK);
  EXPECT_EQ(total, 3 << 20);
}

}  // namespace
}  // namespace concord::cpu
