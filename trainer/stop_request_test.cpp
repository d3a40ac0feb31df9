#include "trainer/stop_request.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

namespace concord {
namespace {

TEST(StopRequest, RemembersTheSignalAndLetsTheProcessLive) {
  const StopRequest stop;
  EXPECT_FALSE(stop.requested());
  raise(SIGTERM);
  EXPECT_TRUE(stop.requested());
  EXPECT_EQ(stop_signal_name(stop.signal()), "SIGTERM");
}

TEST(StopRequest, ANewOneHasHeardNothing) {
  {
    const StopRequest stop;
    raise(SIGINT);
    EXPECT_EQ(stop.signal(), SIGINT);
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

// A scheduler sends it to every process, and a launcher passes on its own.
TEST(StopRequest, ASigtermThatComesTwiceAtOnceIsOne) {
  const StopRequest stop;
  raise(SIGTERM);
  raise(SIGTERM);
  EXPECT_EQ(stop.signal(), SIGTERM);
}

TEST(StopRequest, OneInsideAnotherSharesWhatWasHeard) {
  const StopRequest outer;
  raise(SIGHUP);
  {
    const StopRequest inner;
    EXPECT_EQ(inner.signal(), SIGHUP);
  }
  EXPECT_EQ(outer.signal(), SIGHUP);
}

TEST(StopRequestDeathTest, ASecondSigtermEndsTheProcess) {
  EXPECT_EXIT(
      {
        const StopRequest stop;
        raise(SIGTERM);
        usleep(1'100'000);
        raise(SIGTERM);
      },
      ::testing::KilledBySignal(SIGTERM), "");
}

TEST(StopRequestDeathTest, DuringStartUpItEndsTheProcessAtOnce) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    EXPECT_EXIT(
        {
          const StopRequest stop(StopRequest::Phase::start_up);
          raise(signal);
        },
        ::testing::ExitedWithCode(128 + signal), "");
  }
}

TEST(StopRequestDeathTest, WhatDoesNotEndInTimeIsEnded) {
  EXPECT_EXIT(
      {
        const StopRequest stop(StopRequest::Phase::running, 1);
        raise(SIGTERM);
        for (;;) pause();
      },
      ::testing::ExitedWithCode(1), "exit_signal_grace");
}

TEST(StopRequest, NohupStaysInForce) {
  const auto before = ::signal(SIGHUP, SIG_IGN);
  {
    const StopRequest stop;
    raise(SIGHUP);
    EXPECT_FALSE(stop.requested());
  }
  ::signal(SIGHUP, before);
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
