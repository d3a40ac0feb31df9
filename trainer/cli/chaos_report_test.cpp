#include "trainer/cli/chaos_report.h"

#include <gtest/gtest.h>

#include "core/base/config_error.h"

namespace concord {
namespace {

constexpr const char* kLog = R"x({"event":"training","time":1,"attempt":0,"step":1}
{"event":"fault","time":4,"fault":0,"kind":"kill","rank":2,"step":30}
{"event":"failed","time":4.05,"attempt":0,"rank":2,"step":29,"how":"killed by SIGKILL (Killed)"}
{"event":"training","time":5,"attempt":1,"step":21}
{"event":"fault","time":6,"fault":1,"kind":"delay","rank":1,"step":40}
{"event":"fault","time":8,"fault":2,"kind":"stop","rank":0,"step":60}
{"event":"hung","time":9.5,"attempt":1,"rank":0,"how":"rank 0 is stopped"}
{"event":"failed","time":9.6,"attempt":1,"rank":0,"step":59,"how":"killed by SIGKILL (Killed)"}
{"event":"training","time":10,"attempt":2,"step":60}
{"event":"ended","time":11,"attempt":2,"exit_code":0}
)x";

TEST(ReadRecoveries, TimesAndLostSteps) {
  const std::vector<Fault> faults = {{FaultKind::kill, 2, 30, 0},
                                     {FaultKind::delay, 1, 40, 0},
                                     {FaultKind::stop, 0, 60, 0},
                                     {FaultKind::kill, 3, 90, 0}};
  const ChaosReport report = read_recoveries(faults, 100, kLog);
  ASSERT_EQ(report.outcomes.size(), 4U);
  EXPECT_NEAR(*report.outcomes[0].detected_seconds, 0.05, 1e-9);
  EXPECT_NEAR(*report.outcomes[0].training_seconds, 1, 1e-9);
  EXPECT_EQ(report.outcomes[0].named_rank, 2);
  EXPECT_EQ(report.outcomes[0].lost_steps, 9);  // 21 to 29
  EXPECT_TRUE(report.outcomes[1].happened);
  EXPECT_FALSE(report.outcomes[1].detected_seconds);
  EXPECT_FALSE(report.outcomes[1].is_overtaken);
  EXPECT_NEAR(*report.outcomes[2].detected_seconds, 1.5, 1e-9);
  EXPECT_NEAR(*report.outcomes[2].training_seconds, 2, 1e-9);
  EXPECT_EQ(report.outcomes[2].lost_steps, 0);
  EXPECT_FALSE(report.outcomes[3].happened);
  EXPECT_EQ(report.recoveries, 2);
  EXPECT_NEAR(report.seconds, 10, 1e-9);
  EXPECT_NEAR(report.effective, (1 - 3.0 / 10) * 100 / 109, 1e-9);
}

// A full disk of rank 3 is noticed only when it writes, and a weight only when the replicas are compared: a
// failure belongs to the latest fault of the rank that is reported, and a fault that a new process replaces is not
// missed.
TEST(ReadRecoveries, ANoticeBelongsToTheFaultOfTheRankThatIsNamed) {
  const std::vector<Fault> faults = {{FaultKind::disk, 3, 10, 0},
                                     {FaultKind::delay, 2, 12, 0},
                                     {FaultKind::kill, 3, 14, 0},
                                     {FaultKind::bitflip, 2, 15, 0},
                                     {FaultKind::nan, 0, 18, 0}};
  const ChaosReport report = read_recoveries(faults, 20, R"x({"event":"training","time":1,"attempt":0,"step":1}
{"event":"fault","time":2,"attempt":0,"fault":0,"kind":"disk","rank":3,"step":10}
{"event":"fault","time":3,"attempt":0,"fault":1,"kind":"delay","rank":2,"step":12}
{"event":"fault","time":4,"attempt":0,"fault":2,"kind":"kill","rank":3,"step":14}
{"event":"hung","time":4.4,"attempt":0,"rank":3,"how":"silent"}
{"event":"failed","time":4.5,"attempt":0,"rank":3,"step":13,"how":"killed"}
{"event":"fault","time":5,"attempt":1,"fault":3,"kind":"bitflip","rank":2,"step":15}
{"event":"training","time":5.5,"attempt":1,"step":12}
{"event":"wrong","time":6,"step":15,"rank":2,"how":"rank 2 differs"}
{"event":"failed","time":6.5,"attempt":1,"rank":0,"step":15,"how":"exit code 1"}
{"event":"training","time":7,"attempt":2,"step":13}
{"event":"fault","time":8,"attempt":2,"fault":4,"kind":"nan","rank":0,"step":18}
{"event":"repaired","time":8.5,"step":18,"rank":0,"how":"rank 0 differs"}
{"event":"ended","time":11,"attempt":2,"exit_code":0}
)x");
  EXPECT_TRUE(report.outcomes[0].is_overtaken);
  EXPECT_FALSE(report.outcomes[0].detected_seconds);
  EXPECT_EQ(report.outcomes[2].named_rank, 3);
  EXPECT_EQ(report.outcomes[2].lost_steps, 2);    // 12 and 13
  EXPECT_FALSE(report.outcomes[3].is_overtaken);  // it came in the attempt that began then
  EXPECT_NEAR(*report.outcomes[3].detected_seconds, 1, 1e-9);
  EXPECT_EQ(report.outcomes[3].named_rank, 2);
  EXPECT_NEAR(*report.outcomes[3].training_seconds, 2, 1e-9);
  EXPECT_EQ(report.outcomes[3].lost_steps, 3);
  EXPECT_EQ(report.outcomes[4].named_rank, 0);
  EXPECT_EQ(report.recoveries, 3);
  EXPECT_NEAR(report.effective, (1 - (1.5 + 0.5 + 0.5) / 10) * 20 / 25, 1e-9);
}

TEST(ReadRecoveries, RefusesWhatIsNoLog) { EXPECT_THROW(read_recoveries({}, 10, "x\n"), ConfigError); }

}  // namespace
}  // namespace concord
