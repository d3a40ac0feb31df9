#include "core/schedule/schedule_csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/base/config_error.h"
#include "core/schedule/passes.h"
#include "core/schedule/schedules.h"

namespace concord {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string csv_refusal(std::string_view text, int64_t limit = 0) {
  try {
    parse_schedule_csv(text, "my.csv", limit);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

std::string file_text(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(ScheduleCsv, EveryKindComesBackAsItWasWritten) {
  for (const std::string_view kind : schedule_kinds()) {
    for (const bool complete : {false, true}) {
      Schedule schedule = make_schedule({.kind = std::string(kind), .pp = 4, .microbatches = 8});
      if (complete) schedule = complete_schedule(schedule);
      Schedule read = parse_schedule_csv(schedule_csv(schedule), "my.csv");
      EXPECT_EQ(read.kind, "csv");
      read.kind = schedule.kind;
      read.activation_limit = schedule.activation_limit;
      EXPECT_EQ(read, schedule) << kind;
    }
  }
}

// Including their transfers: torch's order has no deadlock even if every send blocks.
TEST(ScheduleCsv, TorchsSchedulesAreRead) {
  int read = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(CONCORD_GOLDEN) + "/schedules")) {
    const std::string name = entry.path().stem();
    if (entry.path().extension() != ".csv" || name.starts_with("1f1b")) continue;
    EXPECT_EQ(csv_refusal(file_text(entry.path())), "accepted") << name;
    ++read;
  }
  EXPECT_GE(read, 16);
}

// Its indices reach 8, which implies 9 micro-batches, but row 1 has 8 of them when it reduces.
TEST(ScheduleCsv, TorchsOneFOneBIsRefusedBecauseItsLastRankCountsFromOne) {
  EXPECT_EQ(csv_refusal(file_text(std::string(CONCORD_GOLDEN) + "/schedules/1f1b_pp4_m8_v1.csv")),
            "my.csv: row 1, column 17 (0REDUCE_GRAD): stage 0 has the weight gradients of only 8 of 9 micro-batches "
            "before it; it needs all");
}

TEST(ScheduleCsv, SpacesEmptyCellsAndLineEndsDoNotMatter) {
  EXPECT_EQ(csv_refusal(" 0F0 ,, 0B0,\r\n,1F0,1B0\r\n\r\n\n"), "accepted");
  EXPECT_EQ(csv_refusal("0F0,0B0\n1F0,1B0"), "accepted");
  EXPECT_EQ(csv_refusal("0F0, 0SEND_F0 ,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0"), "accepted");
}

TEST(ScheduleCsv, TheFirstBrokenActionIsNamedWithRowAndColumn) {
  EXPECT_EQ(csv_refusal("0F0,0B0\n,1F0,1X0"),
            "my.csv: row 2, column 3: '1X0' is not an action; an action is e.g. 2F0 (stage, kind, micro-batch), with "
            "kind F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B, or 2REDUCE_GRAD");
  EXPECT_THAT(csv_refusal("0F0,,0F0,0B0\n1F0,1B0"), HasSubstr("my.csv: row 1, column 3 (0F0): duplicate action"));
  EXPECT_THAT(csv_refusal("0F0,0B0\n1F0"),
              HasSubstr("my.csv: row 2: micro-batch 0 is incomplete: rank 1 never runs 1B0"));
  EXPECT_THAT(csv_refusal("0F0,1F0,0B0,0F1,0B1\n1F1,1B0,1B1"),
              HasSubstr("row 1, column 2 (1F0): stage 1 is on rank 1"));
  EXPECT_THAT(csv_refusal("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1", 1),
              HasSubstr("row 1, column 2 (0F1): rank 0 would hold the activations of 2"));
  EXPECT_THAT(csv_refusal("0F1,0B1,0F0,0B0\n1F0,1B0,1F1,1B1"), HasSubstr("row 1, column 2 (0B1): deadlock"));
  EXPECT_THAT(csv_refusal("0F0,0SEND_F0+0B0\n1RECV_F0,1F0,1B0"), HasSubstr("row 1, column 2 (0B0): only a transfer"));
}

TEST(ScheduleCsv, RowsHaveToShareTheStages) {
  EXPECT_THAT(csv_refusal("0F0,1F0\n2F0"), AllOf(HasSubstr("row 1 has 2 of the 3 stages"), HasSubstr("2 rows")));
  EXPECT_THAT(csv_refusal("0F0,0B0\n\n1F0,1B0"), HasSubstr("row 1 has 1 of the 2 stages; all 3 rows"));
  EXPECT_THAT(csv_refusal("0F0,0B0\n2F0,2B0"), HasSubstr("stage 1 of the stages 0 to 2 is not in any row"));
}

TEST(ScheduleCsv, HostileTextIsRefused) {
  EXPECT_THAT(csv_refusal(""), HasSubstr("no action"));
  EXPECT_THAT(csv_refusal("\n\n\n"), HasSubstr("no action"));
  EXPECT_THAT(csv_refusal(",,,\n,,"), HasSubstr("no action"));
  EXPECT_THAT(csv_refusal("0F0,16777216F0"),
              AllOf(HasSubstr("row 1, column 2 (16777216F0)"), HasSubstr("16777217 stages")));
  EXPECT_THAT(csv_refusal("0F0,60000F0"), AllOf(HasSubstr("row 1, column 2 (60000F0)"), HasSubstr("only 2 actions")));
  EXPECT_THAT(csv_refusal("0F16777216,0F0"),
              AllOf(HasSubstr("row 1, column 1 (0F16777216)"), HasSubstr("16777217 forwards")));
  EXPECT_THAT(csv_refusal("0F99999999999999999999"), HasSubstr("is not an action"));
  EXPECT_THAT(csv_refusal(std::string("0F0,\0\x01\xff", 7)), HasSubstr("'\\x00\\x01\\xff'"));
  EXPECT_THAT(csv_refusal("0F0," + std::string(100000, 'x')), HasSubstr("xxx...' (100000 bytes)"));
  EXPECT_THAT(csv_refusal("0F0++0B0"), HasSubstr("is not an action"));
  EXPECT_THAT(csv_refusal("+0F0"), HasSubstr("is not an action"));
  EXPECT_THAT(csv_refusal(std::string(5000, '\n') + "0F0"), HasSubstr("more than 4096 lines"));
  EXPECT_THAT(csv_refusal("0F0,0B0", -1), HasSubstr("is -1"));
}

TEST(ScheduleCsv, AFileThatCannotBeReadIsNamed) {
  EXPECT_THROW(load_schedule_csv("/no/such/file.csv"), ConfigError);
  EXPECT_THROW(load_schedule_csv("/"), ConfigError);
  const std::string path = ::testing::TempDir() + "/schedule_csv_test.csv";
  std::ofstream(path) << "0F0,0B0\n1F0,1B0\n";
  EXPECT_EQ(load_schedule_csv(path).pp, 2);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace concord
