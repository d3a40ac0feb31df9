#include "core/base/heartbeat.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>

#include "tests/temporary_folder.h"

namespace concord {
namespace {

TEST(AdaptiveTimeout, IsGenerousUntilItHasSeenEnough) {
  AdaptiveTimeout limit;
  EXPECT_FALSE(limit.seconds());
  limit.add(0.5);
  EXPECT_EQ(limit.seconds(), 10);
  for (size_t i = 2; i < AdaptiveTimeout::kMinDurations; ++i) {
    limit.add(10);
    EXPECT_EQ(limit.seconds(), 100);
  }
  limit.add(0.5);
  EXPECT_EQ(limit.seconds(), 30);
}

TEST(AdaptiveTimeout, AtLeastASecondAndForgetsTheFirstOnes) {
  AdaptiveTimeout limit;
  limit.add(40);
  for (size_t i = 0; i < AdaptiveTimeout::kRemembered; ++i) limit.add(0.002);
  EXPECT_EQ(limit.seconds(), 1);
}

// Step times of busy machines vary by a factor of two, with an outlier once in a hundred steps. None of a million of
// them exceeds its limit.
TEST(AdaptiveTimeout, NoFalseAlarmWithNoisyTimes) {
  std::mt19937_64 random(5);
  std::lognormal_distribution<double> spread(0, 0.25);
  for (const double typical : {0.01, 0.4, 3.0}) {
    AdaptiveTimeout limit;
    int alarms = 0;
    for (int i = 0; i < 30'000; ++i) {
      const double outlier = random() % 100 == 0 ? 1 + static_cast<double>(random() % 100) / 100 : 1;
      const double seconds = typical * spread(random) * outlier;
      if (limit.seconds() && seconds > *limit.seconds()) ++alarms;
      limit.add(seconds);
    }
    EXPECT_EQ(alarms, 0) << typical;
  }
}

TEST(JobBoard, RanksSeeTheLaunchersMemory) {
  JobBoard board(3);
  ASSERT_EQ(setenv(kBoardVariable, board.variable().c_str(), 1), 0);
  Heartbeat pulse(1);
  pulse.enter(RankPhase::training);
  for (int64_t step = 1; step <= 6; ++step) pulse.step_done(step);
  pulse.saved(4, /*is_kept=*/false);
  const RankStatus& notes = board.rank(1);
  EXPECT_EQ(notes.step, 6);
  EXPECT_EQ(notes.beats, 7);
  EXPECT_EQ(notes.limit, 1'000'000'000);
  EXPECT_EQ(notes.saved_step, 4);
  EXPECT_EQ(notes.kept_step, -1);
  EXPECT_EQ(static_cast<RankPhase>(notes.phase.load()), RankPhase::training);
  {
    // The final save writes for minutes, after copies that took milliseconds.
    const PhaseScope saving(&pulse, RankPhase::saving);
    for (int i = 0; i < 10; ++i) pulse.beat();
    EXPECT_EQ(notes.limit, 1'000'000'000);
    const PhaseScope writing(&pulse, RankPhase::writing);
    for (int i = 0; i < 10; ++i) pulse.beat();
    EXPECT_EQ(notes.limit, 0);
  }
  EXPECT_EQ(static_cast<RankPhase>(notes.phase.load()), RankPhase::training);
  EXPECT_EQ(notes.limit, 1'000'000'000);
  pulse.enter(RankPhase::ending);
  EXPECT_EQ(notes.limit, 0);
  EXPECT_EQ(board.rank(0).beats, 0);
  EXPECT_EQ(board.rank(2).beats, 0);
  EXPECT_TRUE(board.begin_fault(7));
  board.clear();
  EXPECT_EQ(notes.step, 0);
  EXPECT_EQ(notes.saved_step, 4);
  EXPECT_FALSE(board.begin_fault(7));
  EXPECT_FALSE(board.begin_fault(-1));
  EXPECT_FALSE(board.begin_fault(JobBoard::kMaxFaults));
  unsetenv(kBoardVariable);
}

TEST(JobBoard, ACheckpointIsKeptOnceItsFolderIsThereThoughItsWriterWasKilled) {
  const tests::TemporaryFolder folder;
  JobBoard board(2);
  ASSERT_EQ(setenv(kBoardVariable, board.variable().c_str(), 1), 0);
  Heartbeat pulse(1);
  pulse.saved(12, /*is_kept=*/false);
  pulse.begins_to_write(9, folder.path() + "/checkpoint-9");
  board.note_complete_checkpoints();
  EXPECT_EQ(board.rank(1).kept_step, -1);
  std::filesystem::create_directory(folder.path() + "/checkpoint-9");
  board.note_complete_checkpoints();
  EXPECT_EQ(board.rank(1).kept_step, 9);
  EXPECT_EQ(board.rank(1).saved_step, 12);  // in memory, and newer
  EXPECT_EQ(board.rank(0).kept_step, -1);
  pulse.begins_to_write(15, std::string(RankStatus::kPathBytes, 'x'));  // too long to be recorded
  board.note_complete_checkpoints();
  EXPECT_EQ(board.rank(1).kept_step, 9);
  unsetenv(kBoardVariable);
}

TEST(JobBoard, WhatIsNoBoardIsIgnored) {
  for (const char* text : {"", "x", "1", "1:", "1:2x", "-1:0", "999999999:3", "0:0"}) {
    ASSERT_EQ(setenv(kBoardVariable, text, 1), 0);
    EXPECT_FALSE(JobBoard::of_launcher()) << text;
    Heartbeat(0).step_done(1);  // does nothing
  }
  unsetenv(kBoardVariable);
  EXPECT_FALSE(JobBoard::of_launcher());
}

}  // namespace
}  // namespace concord
