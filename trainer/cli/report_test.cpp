#include "trainer/cli/report.h"
#include "tests/temporary_folder.h"

#include <gmock/gmock.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/base/config_error.h"
#include "trainer/report/files.h"

namespace concord {
namespace {

using tests::TemporaryFolder;

using nlohmann::json;
using testing::HasSubstr;

RunHistory history_of(const std::vector<std::pair<int64_t, double>>& losses) {
  RunHistory history;
  for (const auto& [step, loss] : losses)
    history.steps.push_back({.step = step, .loss = loss, .tokens = 10 * step, .seconds = 1});
  return history;
}

TEST(ReportCommand, TheDifferenceIsTheLargestOverStepsThatBothHave) {
  const RunHistory first = history_of({{1, 3}, {2, 2}, {3, 1}});
  const LossDifference difference = loss_difference(first, history_of({{2, 2.25}, {3, 0.5}, {4, 9}}));
  EXPECT_EQ(difference.steps, 2);
  EXPECT_EQ(difference.step, 3);
  EXPECT_EQ(difference.absolute, 0.5);
  EXPECT_EQ(loss_difference(first, history_of({{7, 1}})).steps, 0);
  EXPECT_EQ(loss_difference(first, first).absolute, 0);
}

TEST(ReportCommand, ANanBesideANumberIsADifferenceAndOneBesideAnotherIsNone) {
  const RunHistory sound = history_of({{1, 3}, {2, 2}, {3, 1}});
  const RunHistory broken = history_of({{1, 3}, {2, NAN}, {3, 2}});
  EXPECT_TRUE(std::isnan(loss_difference(sound, broken).absolute));
  EXPECT_EQ(loss_difference(sound, broken).step, 2);
  EXPECT_EQ(loss_difference(broken, broken).absolute, 0);
}

TEST(ReportCommand, TheTableHasARunALine) {
  const std::string text =
      compared_text({{"cpu", history_of({{1, 3}, {2, 2}})}, {"cuda", history_of({{1, 3}, {2, 2.001}})}});
  EXPECT_EQ(text,
            "run     steps   last loss      lowest    tokens/s  largest difference from the first run\n"
            "cpu         2     2.00000     2.00000          10\n"
            "cuda        2     2.00100     2.00100          10  1.00e-03 at step 2\n");
}

class ReportCommandTest : public testing::Test {
 protected:
  std::string write_run(const std::string& name, double offset) {
    make_folder(folder_ / name);
    std::string text;
    for (int64_t step = 1; step <= 5; ++step) {
      text +=
          metrics_line(LoggedStep{.step = step, .loss = 4 - 0.5 * static_cast<double>(step) + offset, .tokens = step});
      text += "\n";
    }
    replace_file(folder_ / name + "/" + kMetricsFile, text);
    return folder_ / name;
  }
  static std::string run(const std::string& line) {
    CLI::App app;
    add_report_command(&app);
    testing::internal::CaptureStdout();
    try {
      app.parse("report " + line);
    } catch (...) {
      testing::internal::GetCapturedStdout();
      throw;
    }
    return testing::internal::GetCapturedStdout();
  }

  const TemporaryFolder folder_;
};

TEST_F(ReportCommandTest, DrawsTheRunsOverEachOther) {
  const std::string runs = write_run("a", 0) + " " + write_run("b", 0.25);
  EXPECT_THAT(run(runs + " --names cpu,cuda --svg " + (folder_ / "curves.svg")), HasSubstr("2.50e-01"));
  const std::string svg = read_if_there(folder_ / "curves.svg");
  EXPECT_THAT(svg, HasSubstr("<title>cpu</title>"));
  EXPECT_THAT(svg, HasSubstr("<title>cuda</title>"));
  const json document = json::parse(run(runs + " --json"));
  EXPECT_EQ(document.at("runs")[1].at("largest_loss_difference"), 0.25);
}

TEST_F(ReportCommandTest, WritesThePageOfARunThatNeverFinished) {
  run(write_run("a", 0) + " --html " + (folder_ / "page.html"));
  EXPECT_THAT(read_if_there(folder_ / "page.html"), HasSubstr("\"loss\":[3.5,3,2.5,2,1.5]"));
}

TEST_F(ReportCommandTest, DrawsWhatEvaluationsFound) {
  const std::string a = write_run("a", 0);
  EXPECT_THROW(run(a + " --metric eval_loss --svg -"), ConfigError) << "there was none";
  std::string text;
  for (const int step : {2, 4}) text += metrics_line(LoggedEval{.step = step, .loss = 4.0 / step}) + "\n";
  replace_file(a + "/" + kEvalMetricsFile, text);
  // From the 2nd step to the 4th; up and down as in CurvesSvg.
  EXPECT_THAT(run(a + " --metric eval_loss --svg -"), HasSubstr("d=\"M76.0 61.0L876.0 361.0\""));
  try {
    run(a + " --metric perplexity --svg -");
    ADD_FAILURE() << "there is none of it";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("has no metric perplexity; available: eval_loss,"));
  }
}

TEST_F(ReportCommandTest, ComparesTheMetricThatIsAskedFor) {
  const std::string a = write_run("a", 0), b = write_run("b", 0);
  for (const auto& [folder, scale] : {std::pair(a, 1.0), std::pair(b, 3.0)}) {
    std::string text;
    for (const int step : {2, 4}) text += metrics_line(LoggedEval{.step = step, .loss = scale * step}) + "\n";
    replace_file(folder + "/" + kEvalMetricsFile, text);
  }
  const std::string text = run(a + " " + b + " --names a,b --metric eval_loss");
  EXPECT_THAT(text, HasSubstr("run    steps  last eval_loss      lowest"));
  EXPECT_THAT(text, HasSubstr("b          5        12.00000     6.00000"));
  EXPECT_THAT(text, HasSubstr("8.00e+00 at step 4"));
  const json document = json::parse(run(a + " " + b + " --metric eval_loss --json"));
  EXPECT_EQ(document.at("runs")[1].at("largest_eval_loss_difference"), 8);
  EXPECT_THROW(run(a + " --metric perplexity"), ConfigError);
  EXPECT_THROW(run(a + " --metric eval_loss --serve"), ConfigError);
}

TEST_F(ReportCommandTest, WhatCannotBeMeantIsRefused) {
  const std::string a = write_run("a", 0);
  EXPECT_THROW(run(folder_ / "nothing"), ConfigError);
  EXPECT_THROW(run(a + " --names x,y"), ConfigError);
  EXPECT_THROW(run(a + " " + a + " --html page.html"), ConfigError);
  EXPECT_THROW(run(a + " --json --svg -"), ConfigError);
  EXPECT_THROW(run(a + " --metric mfu --svg -"), ConfigError) << "there is none of it";
  replace_file(folder_ / "a/metrics.jsonl", "");
  EXPECT_THROW(run(a), ConfigError);
}

}  // namespace
}  // namespace concord
