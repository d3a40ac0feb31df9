#include "trainer/report/history.h"
#include "tests/temporary_folder.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "trainer/report/files.h"

namespace concord {
namespace {

using tests::TemporaryFolder;

using nlohmann::json;
using testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

LoggedStep step_at(int64_t step) {
  return {.step = step,
          .epoch = 0.25,
          .loss = 2.0 / 3,
          .learning_rate = 3e-4,
          .grad_norm = 1.25,
          .tokens = 512 * step,
          .tokens_per_second = 1024,
          .seconds = 0.5,
          .time = 1.5,
          .extra = {{"loss_scale", 65536}}};
}

TEST(History, AStepIsAnObjectWithTheNamesThatScriptsRead) {
  const json line = json::parse(metrics_line(step_at(3)));
  for (const char* name : {"step", "loss", "learning_rate", "grad_norm", "tokens", "tokens_per_second"})
    EXPECT_TRUE(line.at(name).is_number()) << name;
  EXPECT_TRUE(line.at("step").is_number_integer());
  EXPECT_EQ(line.at("tokens"), 1536);
  EXPECT_EQ(line.at("loss").get<double>(), 2.0 / 3);  // all digits
  EXPECT_EQ(line.at("loss_scale"), 65536);
  EXPECT_FALSE(line.contains("mfu"));
  EXPECT_FALSE(line.contains("non_finite"));
}

TEST(History, NumbersThatAreNotFiniteAreStillJson) {
  LoggedStep step = step_at(3);
  step.loss = std::nan("");
  step.grad_norm = kInfinity;
  step.extra = {{"margin", -kInfinity}};
  const json line = json::parse(metrics_line(step));
  EXPECT_TRUE(line.at("loss").is_null());
  EXPECT_EQ(line.at("non_finite"), json({{"loss", "nan"}, {"grad_norm", "inf"}, {"margin", "-inf"}}));
}

TEST(History, WhatIsWrittenIsRead) {
  const TemporaryFolder folder;
  LoggedStep broken = step_at(2);
  broken.loss = std::nan("");
  broken.grad_norm = kInfinity;
  LoggedStep bare = step_at(3);
  bare.grad_norm = std::nullopt;
  bare.mfu = 0.41;
  bare.memory_bytes = int64_t{3} << 30;
  AppendFile steps(folder / kMetricsFile, true);
  for (const LoggedStep& step : {step_at(1), broken, bare}) steps.append(metrics_line(step) + "\n");
  AppendFile(folder / kEvalMetricsFile, true)
      .append(metrics_line(LoggedEval{.step = 2, .loss = 1.5, .seconds = 3, .extra = {{"eval_accuracy", 0.5}}}) + "\n");
  const RunHistory history = read_history(folder.path());
  ASSERT_EQ(history.steps.size(), 3u);
  EXPECT_EQ(metrics_line(history.steps[0]), metrics_line(step_at(1)));
  EXPECT_TRUE(std::isnan(history.steps[1].loss));
  EXPECT_EQ(history.steps[1].grad_norm, kInfinity);
  EXPECT_EQ(history.steps[2].grad_norm, std::nullopt);
  EXPECT_EQ(metrics_line(history.steps[2]), metrics_line(bare));
  ASSERT_EQ(history.evals.size(), 1u);
  EXPECT_EQ(history.evals[0].loss, 1.5);
  EXPECT_EQ(history.evals[0].extra, NamedValues({{"eval_accuracy", 0.5}}));
}

TEST(History, ALastLineWithoutItsEndIsLeftOut) {
  const TemporaryFolder folder;
  replace_file(folder / kMetricsFile, metrics_line(step_at(1)) + "\n{\"step\":2,\"lo");
  EXPECT_EQ(read_history(folder.path()).steps.size(), 1u);
}

TEST(History, AnyOtherLineThatIsNoneIsAnErrorWithItsNumber) {
  const TemporaryFolder folder;
  for (const std::string bad :
       {"nonsense", "[1]", "{\"step\":\"one\"}", "{\"step\":1,\"loss\":\"low\"}", "{\"step\":1e300}"}) {
    replace_file(folder / kMetricsFile, metrics_line(step_at(1)) + "\n" + bad + "\n");
    try {
      read_history(folder.path());
      FAIL() << bad << " was taken";
    } catch (const std::runtime_error& error) {
      EXPECT_THAT(error.what(), HasSubstr("metrics.jsonl:2: invalid line of metrics"));
    }
  }
}

TEST(History, AResumedRunForgetsWhatLayAfterIt) {
  const TemporaryFolder folder;
  AppendFile steps(folder / kMetricsFile, true);
  for (int64_t step = 1; step <= 5; ++step) steps.append(metrics_line(step_at(step)) + "\n");
  steps.append("{\"step\":6,");  // truncated when the run died
  RunHistory history = read_history(folder.path());
  forget_after(3, folder.path(), &history);
  EXPECT_EQ(history.steps.size(), 3u);
  EXPECT_EQ(read_if_there(folder / kMetricsFile),
            metrics_line(step_at(1)) + "\n" + metrics_line(step_at(2)) + "\n" + metrics_line(step_at(3)) + "\n");
}

TEST(History, NoFilesAreNoHistory) {
  const TemporaryFolder folder;
  EXPECT_TRUE(read_history(folder.path()).steps.empty());
}

RankTable ranks_until(int64_t last) {
  return {.first_step = last - 9,
          .last_step = last,
          .ranks = {{.compute = 0.5, .data = 0.000001, .saving = 0, .communication = 0.25},
                    {.compute = 1.0 / 3, .data = 2e-7, .saving = 1, .communication = 0}},
          .stages = {0, 1}};
}

TEST(History, TimesOfRanksAreALineWithAnArrayPerActivityInMicroseconds) {
  EXPECT_EQ(
      metrics_line(ranks_until(60)),
      R"({"step":60,"first_step":51,"stages":[0,1],"compute":[0.5,0.333333],"data":[1e-06,0.0],"saving":[0.0,1.0],)"
      R"("communication":[0.25,0.0]})");
}

TEST(History, TimesOfRanksAreReadAndAResumedRunKeepsThoseBeforeItsStart) {
  const TemporaryFolder folder;
  const std::string path = folder / kRankTimesFile;
  std::string text;
  for (const int64_t last : {10, 20, 30}) text += metrics_line(ranks_until(last)) + "\n";
  replace_file(path, text);
  RunHistory history = read_history(folder.path());
  ASSERT_EQ(history.ranks.size(), 3u);
  RankTable expected = ranks_until(20);
  expected.ranks[1].compute = 0.333333;
  expected.ranks[1].data = 0;
  EXPECT_EQ(history.ranks[1], expected);
  forget_after(25, folder.path(), &history);
  EXPECT_EQ(history.ranks.size(), 2u);
  EXPECT_EQ(read_if_there(path), metrics_line(ranks_until(10)) + "\n" + metrics_line(ranks_until(20)) + "\n");
}

TEST(History, TimesOfRanksThatCannotBeAreAnErrorWithTheLine) {
  const TemporaryFolder folder;
  for (const char* line :
       {R"({"step":5,"first_step":1,"stages":[0],"compute":[1,2],"data":[0],"saving":[0],"communication":[0]})",
        R"({"step":5,"first_step":6,"stages":[0],"compute":[1],"data":[0],"saving":[0],"communication":[0]})",
        R"({"step":5,"first_step":-9,"stages":[0],"compute":[1],"data":[0],"saving":[0],"communication":[0]})",
        R"({"step":5,"first_step":1,"stages":[0],"compute":["x"],"data":[0],"saving":[0],"communication":[0]})",
        R"({"step":5,"first_step":1,"stages":[0],"compute":[1]})", "[]", "5"}) {
    replace_file(folder / kRankTimesFile, std::string(line) + "\n");
    EXPECT_THROW(
        {
          try {
            read_history(folder.path());
          } catch (const std::runtime_error& error) {
            EXPECT_THAT(error.what(), HasSubstr("rank_times.jsonl:1: invalid line"));
            throw;
          }
        },
        std::runtime_error)
        << line;
  }
}

}  // namespace
}  // namespace concord
