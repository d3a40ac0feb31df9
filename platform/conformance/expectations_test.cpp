#include "platform/conformance/expectations.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace concord::conformance {
namespace {

Expectations expectations() {
  return Expectations(Json::parse(R"({
    "unsupported": [{"test": "comm\\..*Avg.*", "reason": "no AVG"}],
    "expected_failure": [{"test": "event\\.Late", "reason": "bug 17"}]})"));
}

TestResult result(Status status, bool unsupported = false) {
  TestResult made;
  made.status = status;
  made.reason = status == Status::kPass ? "" : "why";
  made.unsupported = unsupported;
  return made;
}

TEST(Expectations, LeaveTheRestAlone) {
  EXPECT_EQ(expectations().judge("comm.Sum", result(Status::kPass)).status, Status::kPass);
  EXPECT_EQ(expectations().judge("comm.Sum", result(Status::kFail)).status, Status::kFail);
  EXPECT_EQ(expectations().judge("comm.Sum", result(Status::kSkip)).status, Status::kSkip);
}

TEST(Expectations, AnUnexpectedPassFails) {
  EXPECT_EQ(expectations().judge("comm.AvgOfF32", result(Status::kPass)).status, Status::kFail);
  EXPECT_EQ(expectations().judge("event.Late", result(Status::kPass)).status, Status::kFail);
}

TEST(Expectations, AnExpectedFailureIsASkipWithBothReasons) {
  const TestResult judged = expectations().judge("event.Late", result(Status::kFail));
  EXPECT_EQ(judged.status, Status::kSkip);
  EXPECT_NE(judged.reason.find("bug 17"), std::string::npos);
  EXPECT_NE(judged.reason.find("why"), std::string::npos);
}

TEST(Expectations, AnUnsupportedTestThatFailsStillFails) {
  EXPECT_EQ(expectations().judge("comm.AvgOfF32", result(Status::kFail)).status, Status::kFail);
}

TEST(Expectations, WhatIsDeclaredUnsupportedMustBeListed) {
  EXPECT_EQ(expectations().judge("comm.AvgOfF32", result(Status::kSkip, true)).status, Status::kSkip);
  EXPECT_EQ(expectations().judge("comm.SumOfF32", result(Status::kSkip, true)).status, Status::kFail);
  EXPECT_EQ(Expectations().judge("comm.SumOfF32", result(Status::kSkip, true)).status, Status::kSkip) << "no file";
}

TEST(Expectations, PatternsAreForWholeNames) {
  EXPECT_EQ(expectations().judge("event.LateButFine", result(Status::kPass)).status, Status::kPass);
}

TEST(Expectations, EntriesThatMatchNothingAreNamed) {
  EXPECT_TRUE(expectations().unmatched({"comm.AvgOfF32", "event.Late"}).empty());
  const std::vector<std::string> left = expectations().unmatched({"comm.AvgOfF32"});
  ASSERT_EQ(left.size(), 1u);
  EXPECT_NE(left[0].find("event\\.Late"), std::string::npos);
}

TEST(Expectations, MistakesAreSentences) {
  for (const char* wrong : {"[]", R"({"unsuported": []})", R"({"unsupported": [{"test": "x"}]})",
                            R"({"unsupported": [{"test": "(", "reason": "x"}]})"}) {
    EXPECT_THROW(Expectations{Json::parse(wrong)}, std::runtime_error) << wrong;
  }
  EXPECT_THROW(Expectations::read("/nothing/there"), std::runtime_error);
}

}  // namespace
}  // namespace concord::conformance
