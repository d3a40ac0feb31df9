#include "backends/ascend/sim/runtime/settings.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace concord::ascend::sim {
namespace {

TEST(SettingsTest, SizesAndTimesHaveUnits) {
  uint64_t bytes = 0;
  EXPECT_TRUE(parse_bytes("8G", &bytes));
  EXPECT_EQ(bytes, uint64_t{8} << 30);
  EXPECT_TRUE(parse_bytes("512", &bytes));
  EXPECT_EQ(bytes, 512u);
  for (const char* wrong : {"", "G", "8T", "8 G", "-1", "99999999999999999999"})
    EXPECT_FALSE(parse_bytes(wrong, &bytes));
  std::chrono::microseconds time{};
  EXPECT_TRUE(parse_duration("3ms", &time));
  EXPECT_EQ(time.count(), 3000);
  for (const char* wrong : {"", "3", "3m", "ms"}) EXPECT_FALSE(parse_duration(wrong, &time));
}

TEST(SettingsTest, VisibleDevicesAreThoseBeforeTheFirstThatIsNone) {
  ::setenv("ASCEND_RT_VISIBLE_DEVICES", "2,0,9,1", 1);
  EXPECT_EQ(visible_devices(), (std::vector<int32_t>{2, 0}));
  ::setenv("ASCEND_RT_VISIBLE_DEVICES", "x", 1);
  EXPECT_TRUE(visible_devices().empty());
  ::unsetenv("ASCEND_RT_VISIBLE_DEVICES");
  EXPECT_EQ(visible_devices().size(), 8u);
}

}  // namespace
}  // namespace concord::ascend::sim
