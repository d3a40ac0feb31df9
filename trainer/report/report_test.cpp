#include "trainer/report/report.h"
#include "tests/temporary_folder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <malloc.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "platform/base/sanitizer.hpp"
#include "trainer/report/files.h"

#if CONCORD_UNDER_ASAN
#include <sanitizer/allocator_interface.h>
#endif

namespace concord {
namespace {

using tests::TemporaryFolder;

using nlohmann::json;
using testing::HasSubstr;

// The output goes to the file "terminal" in the folder; each reading of the clock advances it by a second.
class ReportTest : public testing::Test {
 protected:
  ReportTest() : terminal_(::open((folder_ / "terminal").c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600)) {}
  ~ReportTest() override { ::close(terminal_); }

  RunDescription description() {
    return {.output_dir = folder_ / "out/run",
            .title = "test",
            .max_steps = 10,
            .num_train_epochs = 1,
            .logging_steps = 2,
            .world_size = 2,
            .configuration = {{"learning_rate", "0.001"}},
            .shape = TransformerShape{.num_layers = 1, .hidden_size = 2, .vocab_size = 100, .seq_length = 8},
            .peak_flops = 1e5,
            .terminal = terminal_,
            .clock = [this] { return now_ += 1; }};
  }
  static StepReport step_at(int64_t step) {
    return {.step = step,
            .epoch = 0.1 * static_cast<double>(step),
            .loss = 4.0 / static_cast<double>(step),
            .learning_rate = 1e-3,
            .grad_norm = 0.5,
            .tokens = 64,
            .seconds = 2,
            .extra = {{"loss_scale", 8}}};
  }
  std::string read(const std::string& name) const { return read_if_there(folder_ / name); }
  json state() const { return json::parse(read("out/run/trainer_state.json")); }

  const TemporaryFolder folder_;
  int terminal_;
  double now_ = 1000;
};

TEST_F(ReportTest, AStepIsInEveryFileWithTokensAddedUp) {
  TrainingReport report(description());
  report.on_step(step_at(2));
  report.on_step(step_at(4));
  const RunHistory history = read_history(folder_ / "out/run");
  ASSERT_EQ(history.steps.size(), 2u);
  EXPECT_EQ(history.steps[1].tokens, 128);
  EXPECT_EQ(history.steps[1].tokens_per_second, 32);
  // 6 * 64 tokens * 2 * 100 weights in 2 s on 2 devices of 1e5.
  EXPECT_DOUBLE_EQ(history.steps[1].mfu.value(), 6.0 * 64 * 200 / (2 * 2e5));
  report.finish({});
  EXPECT_THAT(read("out/run/report.html"), HasSubstr("\"loss\":[2,1]"));
  EXPECT_THAT(
      read("terminal"),
      HasSubstr("step  4/10  loss 1.0000  lr 1.00e-03  grad norm 0.5000  32 tokens/s  MFU 19.2 %  0:06 left\n"));
  EXPECT_THAT(read("terminal"), HasSubstr("finished: 4 steps, 128 tokens"));
}

TEST_F(ReportTest, SkippedStepsSayHowManyAndWhatBecameOfTheLossScale) {
  TrainingReport report(description());
  const auto skipping = [&](int64_t step, int64_t skipped, double next_loss_scale) {
    StepReport one = step_at(step);
    one.grad_norm = std::nan("");
    one.skipped = skipped;
    one.next_loss_scale = next_loss_scale;
    report.on_step(one);
  };
  skipping(1, 1, 8);  // its scale is 8
  EXPECT_THAT(read("terminal"), HasSubstr("  skipped, loss scale is 8  "));
  skipping(2, 1, 4);
  EXPECT_THAT(read("terminal"), HasSubstr("  skipped, loss scale halved to 4  "));
  skipping(6, 3, 4);
  EXPECT_THAT(read("terminal"), HasSubstr("  3 of 4 steps skipped, loss scale halved to 4  "));
  skipping(7, 1, 0);
  EXPECT_THAT(read("terminal"), HasSubstr("  skipped, gradient NaN or Inf  "));
  StepReport asked = step_at(8);
  asked.loss = std::nan("");
  asked.skipped = 1;
  asked.extra = {{"untrained_iter", 1}};
  report.on_step(asked);
  EXPECT_THAT(read("terminal"), HasSubstr("  skipped, nothing to train on (iterations_to_skip, or no labels)  "));
}

TEST_F(ReportTest, LinesOfPairsHaveTheirAccuracyAndMargin) {
  TrainingReport report(description());
  StepReport step = step_at(2);
  step.samples = 8;
  step.extra = {{"rewards/chosen", 1}, {"rewards/accuracies", 0.75}, {"rewards/margins", -0.125}};
  report.on_step(step);
  EXPECT_THAT(read("terminal"), HasSubstr("loss 2.0000  accuracy 0.7500  margin -0.1250  lr 1.00e-03"));
  report.on_step(step);
  EXPECT_EQ(read_history(folder_ / "out/run").steps[1].samples, 16);
  report.on_eval({.step = 2, .loss = 1.5, .seconds = 2, .extra = {{"eval_accuracy", 0.5}, {"eval_margin", 3}}});
  EXPECT_THAT(read("terminal"), HasSubstr("step 2: evaluation loss 1.5000, accuracy 0.5000, margin 3.0000 in 2.0 s"));
}

TEST_F(ReportTest, TensorBoardHasTheNamesOfEvaluationsOnce) {
  TrainingReport report(description());
  report.on_eval({.step = 2, .loss = 1.5, .extra = {{"eval_accuracy", 0.5}, {"eval_rewards/margins", 3}}});
  const std::filesystem::directory_iterator file(folder_ / "out/run/runs");
  const std::string events = read("out/run/runs/" + file->path().filename().string());
  for (const char* tag : {"eval/loss", "eval/accuracy", "eval/rewards/margins"}) EXPECT_THAT(events, HasSubstr(tag));
  EXPECT_THAT(events, testing::Not(HasSubstr("eval_")));
}

TEST_F(ReportTest, TheStateHasHuggingFacesKeysAndNoOthers) {
  TrainingReport report(description());
  report.on_step(step_at(2));
  report.on_eval({.step = 2, .epoch = 0.2, .loss = 1.75, .tokens = 10, .seconds = 5});
  report.on_step(step_at(4));
  report.finish({});
  std::set<std::string> keys;
  const json document = state();
  for (const auto& [key, value] : document.items()) keys.insert(key);
  // The keys of transformers.TrainerState, which rejects files with other keys.
  EXPECT_EQ(keys, (std::set<std::string>{"best_global_step",
                                         "best_metric",
                                         "best_model_checkpoint",
                                         "epoch",
                                         "eval_steps",
                                         "global_step",
                                         "is_hyper_param_search",
                                         "is_local_process_zero",
                                         "is_world_process_zero",
                                         "log_history",
                                         "logging_steps",
                                         "max_steps",
                                         "num_input_tokens_seen",
                                         "num_train_epochs",
                                         "save_steps",
                                         "stateful_callbacks",
                                         "total_flos",
                                         "train_batch_size",
                                         "trial_name",
                                         "trial_params"}));
  EXPECT_EQ(document.at("global_step"), 4);
  EXPECT_EQ(document.at("num_input_tokens_seen"), 128);
  const json& log = document.at("log_history");
  ASSERT_EQ(log.size(), 3u);
  EXPECT_EQ(log[0].at("loss"), 2.0);
  EXPECT_EQ(log[0].at("loss_scale"), 8);
  EXPECT_EQ(log[1].at("eval_loss"), 1.75);
  EXPECT_EQ(log[2].at("step"), 4);
}

TEST_F(ReportTest, TheStateKnowsOfStepsThatWereNotLogged) {
  TrainingReport report(description());
  report.on_step(step_at(2));
  report.on_progress(3);
  const json state = json::parse(report.state_json());
  EXPECT_EQ(state.at("global_step"), 3);
  EXPECT_EQ(state.at("log_history").size(), 1u);
}

// The clock advances by a second per reading, so the values are old whenever they are asked for.
TEST_F(ReportTest, TheLineOfATerminalHasValuesBeforeAStepIsLogged) {
  RunDescription run = description();
  EXPECT_FALSE(TrainingReport(run).on_progress(1)) << "a file has no line to redraw";
  run.progress = ProgressMode::line;
  TrainingReport report(run);
  EXPECT_TRUE(report.on_progress(2));
  report.on_recent({.steps = 2, .loss = 3.5, .tokens = 100, .seconds = 4});
  EXPECT_THAT(read("terminal"), HasSubstr("loss 3.5000  25 tokens/s  0:16 left"));
  EXPECT_THAT(read("out/run/metrics.jsonl"), "") << "nothing is logged";
}

TEST_F(ReportTest, AResumedRunGoesOnWhereItWas) {
  {
    TrainingReport report(description());
    for (const int64_t step : {2, 4, 6}) report.on_step(step_at(step));
    report.on_eval({.step = 6, .loss = 1});
  }
  RunDescription resumed = description();
  resumed.first_step = 4;
  TrainingReport report(resumed);
  report.on_step(step_at(6));
  report.finish({});
  const RunHistory history = read_history(folder_ / "out/run");
  ASSERT_EQ(history.steps.size(), 3u);
  EXPECT_EQ(history.steps[2].tokens, 192);
  EXPECT_TRUE(history.evals.empty()) << "of step 6, which was not there yet";
  EXPECT_EQ(state().at("log_history").size(), 3u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_ / "out/run/runs"), {}), 2);
}

// Bytes that this process has allocated.
size_t allocated_bytes() {
#if CONCORD_UNDER_ASAN
  return __sanitizer_get_current_allocated_bytes();
#else
  return ::mallinfo2().uordblks;
#endif
}

// Rank 0 must not grow by more than 20 kB per 1,000 steps (tests/soak), which is 20 bytes per row if each is logged.
TEST_F(ReportTest, ARowTakesNoMemoryOnceItIsWritten) {
  constexpr int64_t kRows = 400, kMaxBytesPerRow = 20;
  RunDescription run = description();
  run.progress = ProgressMode::none;
  run.max_steps = 2 * kRows;
  TrainingReport report(run);
  const auto log_rows = [&](int64_t begin, int64_t end) {
    for (int64_t step = begin; step < end; ++step) {
      StepReport row = step_at(step);
      for (int i = 0; i < 12; ++i) row.extra.emplace_back("a_metric_with_a_long_name_" + std::to_string(i), i);
      row.ranks = RankTable{.first_step = step, .last_step = step, .ranks = {{}, {}}, .stages = {0, 0}};
      report.on_step(row);
      if (step % 10 == 0) report.on_eval({.step = step, .loss = 1, .extra = row.extra, .samples = {{"a", "b"}}});
      if (step % 100 != 0) continue;
      EXPECT_THAT(report.state_json(), HasSubstr("\"step\":" + std::to_string(step)));
    }
  };
  log_rows(1, kRows);
  const size_t before = allocated_bytes();
  log_rows(kRows, 2 * kRows);
  EXPECT_LE(allocated_bytes(), before + kRows * kMaxBytesPerRow);
}

TEST_F(ReportTest, ANewRunInTheSameFolderStartsEmpty) {
  {
    TrainingReport report(description());
    report.on_step(step_at(2));
    report.on_eval({.step = 2, .loss = 1, .samples = {{"prompt", "of another run"}}});
  }
  TrainingReport report(description());
  EXPECT_EQ(read("out/run/metrics.jsonl"), "");
  report.finish({});
  EXPECT_THAT(read("out/run/report.html"), testing::Not(HasSubstr("of another run")));
}

TEST_F(ReportTest, ALossThatIsNotFiniteIsReportedEverywhereAndBreaksNothing) {
  TrainingReport report(description());
  StepReport broken = step_at(2);
  broken.loss = std::nan("");
  broken.grad_norm = INFINITY;
  report.on_step(broken);
  report.finish({});
  EXPECT_TRUE(state().at("log_history")[0].at("loss").is_null());
  EXPECT_THAT(read("terminal"), HasSubstr("loss nan"));
  EXPECT_THAT(read("terminal"), HasSubstr("1 not finite"));
}

TEST_F(ReportTest, WhatIsNotWantedIsNotWritten) {
  RunDescription quiet = description();
  quiet.tensorboard = quiet.html = false;
  quiet.progress = ProgressMode::none;
  TrainingReport report(quiet);
  report.on_progress(1);
  report.on_step(step_at(2));
  report.finish({});
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/run/runs"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/run/report.html"));
  EXPECT_EQ(read("terminal"), "");
  EXPECT_EQ(read_history(folder_ / "out/run").steps.size(), 1u);
}

TEST_F(ReportTest, AnOutputFolderThatCannotBeIsAnErrorBeforeAnyStep) {
  RunDescription run = description();
  run.output_dir = folder_ / "terminal/below";
  EXPECT_THROW(TrainingReport report(run), std::runtime_error);
}

TEST_F(ReportTest, TheTimeLeftIsThatOfTheStepsToCome) {
  RunDescription run = description();
  run.max_steps = 100;
  TrainingReport report(run);
  report.on_step(step_at(10));  // 10 steps in 2 s
  EXPECT_THAT(read("terminal"), HasSubstr("0:18 left"));
}

TEST_F(ReportTest, AnOutputFolderThatIsRemovedDuringTheRunIsAnError) {
  TrainingReport report(description());
  report.on_step(step_at(1));
  std::filesystem::remove_all(folder_ / "out/run");
  std::filesystem::create_directories(folder_ / "out/run");  // as a checkpoint that is saved does
  EXPECT_THROW(report.on_step(step_at(2)), std::runtime_error);
  EXPECT_THROW(report.finish({.reason = "done"}), std::runtime_error);
}

}  // namespace
}  // namespace concord
