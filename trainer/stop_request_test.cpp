#include "trainer/stop_request.h"

#include <gtest/gtest.h>

namespace concord {
namespace {

TEST(StopRequest, RemembersTheSignalAndLetsTheProcessLive) {
  const StopRequest stop;
  EXPECT_FALSE(stop.requested());
  EXPECT_EQ(stop.signal_name(), "");
  raise(SIGTERM);
  EXPECT_TRUE(stop.requested());
  EXPECT_EQ(stop.signal_name(), "SIGTERM");
}

TEST(StopRequest, ANewOneHasHeardNothing) {
  {
    const StopRequest stop;
    raise(SIGINT);
    EXPECT_EQ(stop.signal_name(), "SIGINT");
  }
  EXPECT_FALSE(StopRequest().requested());
}

TEST(StopRequestDeathTest, ASecondInterruptEndsTheProcess) {
  EXPECT_EXIT(
      {
        const StopRequest stop;
        raise(SIGINT);
        raise(SIGINT);
      },
      ::testing::KilledBySignal(SIGINT), "");
}

TEST(StopRequestDeathTest, AfterItTheSignalsMeanWhatTheyMeantBefore) {
  EXPECT_EXIT(
      {
        {
          const StopRequest stop;
        }
        raise(SIGTERM);
      },
      ::testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace concord
