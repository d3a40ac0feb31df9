#include "trainer/cli/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace concord {
namespace {

using ::testing::HasSubstr;
using Kind = Finding::Kind;

constexpr int64_t kMiB = 1 << 20;

TEST(Doctor, EveryProblemComesWithWhatToDo) {
  for (const Finding& finding : {judge_memory(2048 * kMiB, 100 * kMiB), judge_disk("/x", 10 * kMiB, true),
                                 judge_disk("/x", 4096 * kMiB, false)}) {
    EXPECT_EQ(finding.kind, Kind::problem) << finding.found;
    EXPECT_FALSE(finding.advice.empty()) << finding.found;
  }
}

TEST(Doctor, ASmallDevShmIsNoProblemBecauseRanksMeetInAnAnonymousFile) {
  for (const Finding& finding : {judge_shared_memory(64 * kMiB, 64 * kMiB, true), judge_shared_memory(0, 0, false),
                                 judge_shared_memory(4096 * kMiB, 4096 * kMiB, false)}) {
    EXPECT_EQ(finding.kind, Kind::note) << finding.found;
    EXPECT_THAT(finding.advice, HasSubstr("--shm-size")) << finding.found;
  }
}

TEST(Doctor, WhatIsEnoughIsFine) {
  EXPECT_EQ(judge_shared_memory(1024 * kMiB, 512 * kMiB, true).kind, Kind::fine);
  EXPECT_EQ(judge_memory(8192 * kMiB, 4096 * kMiB).kind, Kind::fine);
  EXPECT_EQ(judge_disk("/x", 4096 * kMiB, true).kind, Kind::fine);
  EXPECT_EQ(judge_cores(2, 8).kind, Kind::fine);
  EXPECT_EQ(judge_cores(1, 8).kind, Kind::note);
}

TEST(Doctor, APythonWithoutAModuleIsNamedWithTheCommandThatInstallsIt) {
  EXPECT_EQ(judge_python("python3", true, true).kind, Kind::fine);
  const Finding finding = judge_python("/opt/python", true, false);
  EXPECT_EQ(finding.kind, Kind::note);
  EXPECT_EQ(finding.found, "/opt/python does not have jinja2");
  EXPECT_THAT(finding.advice, HasSubstr("/opt/python -m pip install tokenizers jinja2"));
  EXPECT_EQ(judge_python("python3", false, false).found, "python3 does not have tokenizers and jinja2");
}

TEST(Doctor, APlatformWithoutChecksIsAProblem) {
  const std::vector<Finding> findings = examine_platform("nonesuch");
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].kind, Kind::problem);
  EXPECT_THAT(findings[0].found, HasSubstr("libconcorddoctor_nonesuch.so"));
}

TEST(Doctor, ThisMachineIsExaminedWithoutAnError) {
  const std::vector<Finding> findings = examine_machine();
  EXPECT_GE(findings.size(), 6u);
  for (const Finding& finding : findings) EXPECT_FALSE(finding.topic.empty() || finding.found.empty());
}

}  // namespace
}  // namespace concord
