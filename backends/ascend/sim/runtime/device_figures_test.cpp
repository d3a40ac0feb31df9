#include "backends/ascend/sim/runtime/device_figures.h"

#include <gmock/gmock.h>

namespace concord::ascend::sim {
namespace {

using ::testing::HasSubstr;

TEST(DeviceFigures, TimesAreTheLaunchesAndTheLongestOfMemoryAndProducts) {
  DeviceFigures device;
  ASSERT_EQ(parse_device_figures(kDevice910b, &device), "");
  EXPECT_EQ(device.name, "910B");
  EXPECT_DOUBLE_EQ(device.microseconds(3, 0, 0), 15);
  EXPECT_DOUBLE_EQ(device.microseconds(1, 1'600'000, 0), 6);
  EXPECT_DOUBLE_EQ(device.microseconds(1, 1'600'000, 6.4e8), 7);  // products of 2 us hide 1 us of memory
}

TEST(DeviceFigures, AFileHasEveryFieldOnceAndNumbersAboveZero) {
  const std::string good = kDevice910b;
  DeviceFigures device;
  EXPECT_EQ(parse_device_figures("# comment\n\n" + good + "# end", &device), "");
  EXPECT_THAT(parse_device_figures(good + "launch_seconds = 1", &device), HasSubstr("given twice"));
  EXPECT_THAT(parse_device_figures(good + "speed = 1", &device), HasSubstr("'speed' is unknown"));
  EXPECT_THAT(parse_device_figures("name = a\nlaunch_seconds = fast", &device), HasSubstr("number above 0"));
  EXPECT_THAT(parse_device_figures("name = a\nlaunch_seconds = -1", &device), HasSubstr("number above 0"));
  EXPECT_THAT(parse_device_figures("name = a\nlaunch_seconds = 1", &device), HasSubstr("is missing"));
  EXPECT_THAT(parse_device_figures("", &device), HasSubstr("'name' is missing"));
  EXPECT_THAT(parse_device_figures("name a", &device), HasSubstr("name = value"));
}

}  // namespace
}  // namespace concord::ascend::sim
