#include "backends/ascend/sim/runtime/work_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace concord::ascend::sim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// Two operators and a fill: 5 us for each launch, and 1 us per 1.6 MB, or 1 us per 320 million operations of products
// if those take longer.
class WorkReportTest : public ::testing::Test {
 protected:
  WorkReportTest() {
    report_.count("aclnnAdd", 3200000, 1600000, 6.4e9);
    report_.count("aclnnAdd", 0, 0);
    report_.count("aclrtMemsetAsync", 0, 800000);
  }
  WorkReport report_;
};

TEST_F(WorkReportTest, AddsTheWorkOfAName) {
  const WorkReport::Entry add = report_.work_of("aclnnAdd");
  EXPECT_EQ(add.launches, 2);
  EXPECT_EQ(add.read, 3200000);
  EXPECT_EQ(add.written, 1600000);
  EXPECT_DOUBLE_EQ(add.microseconds, 2 * 5 + 20);
  EXPECT_EQ(report_.work_of("aclnnMul").launches, 0);
  const WorkReport::Entry all = report_.work_of(nullptr);
  EXPECT_EQ(all.launches, 3);
  EXPECT_EQ(all.written, 2400000);
}

TEST_F(WorkReportTest, TheFileIsLabelledAndHasEveryOperator) {
  EXPECT_EQ(
      report_.json(),
      R"({"label": "sim-npu", "device": "910B: 1.6 TB/s, 320 TFLOP/s, 5 us per launch",)"
      "\n"
      R"( "total": {"launches": 3, "bytes_read": 3200000, "bytes_written": 2400000, "product_flops": 6400000000, )"
      R"("microseconds": 35.5},)"
      "\n"
      R"( "operators": {)"
      "\n"
      R"(  "aclnnAdd": {"launches": 2, "bytes_read": 3200000, "bytes_written": 1600000, "product_flops": 6400000000, )"
      R"("microseconds": 30.0},)"
      "\n"
      R"(  "aclrtMemsetAsync": {"launches": 1, "bytes_read": 0, "bytes_written": 800000, "product_flops": 0, )"
      R"("microseconds": 5.5}}})"
      "\n");
}

TEST_F(WorkReportTest, TheTableBeginsWithWhatTakesLongest) {
  const std::string table = report_.table();
  EXPECT_THAT(table, MatchesRegex("\\[sim-npu\\] work by count.*\n.*operator.*\n  aclnnAdd .*\n"
                                  "  aclrtMemsetAsync .*\n  total of 2 operators .*\n"));
  EXPECT_THAT(table, AllOf(HasSubstr("3.2"), HasSubstr("1.6"), HasSubstr("6.40")));
}

}  // namespace
}  // namespace concord::ascend::sim
