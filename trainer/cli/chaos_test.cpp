#include "trainer/cli/chaos.h"

#include <gtest/gtest.h>

#include "core/config_error.h"

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
  EXPECT_EQ(report.outcomes[0].lost_steps, 9);  // 21 to 29
  EXPECT_TRUE(report.outcomes[1].happened);
  EXPECT_FALSE(report.outcomes[1].detected_seconds);
  EXPECT_NEAR(*report.outcomes[2].detected_seconds, 1.5, 1e-9);
  EXPECT_NEAR(*report.outcomes[2].training_seconds, 2, 1e-9);
  EXPECT_EQ(report.outcomes[2].lost_steps, 0);
  EXPECT_FALSE(report.outcomes[3].happened);
  EXPECT_EQ(report.recoveries, 2);
  EXPECT_NEAR(report.seconds, 10, 1e-9);
  EXPECT_NEAR(report.effective, (1 - 3.0 / 10) * 100 / 109, 1e-9);
}

TEST(ReadRecoveries, RefusesWhatIsNoLog) { EXPECT_THROW(read_recoveries({}, 10, "x\n"), ConfigError); }

}  // namespace
}  // namespace concord
