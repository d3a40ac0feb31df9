// load_best_model_at_end and related arguments, through the program.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "tests/processes/training/resume_runs.h"

namespace concord::testing_processes {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class BestModelRun : public TrainResume {
 protected:
  // Writes 8 samples; |token| returns token |t| of sample |i|.
  template <class Token>
  std::string write_eval(Token token) {
    std::ofstream file(path("eval.jsonl"));
    for (int i = 0; i < 8; ++i) {
      file << "{\"input_ids\": [";
      for (int t = 0; t < 16; ++t) file << (t ? ", " : "") << token(i, t) % 300;
      file << "]}\n";
    }
    return path("eval.jsonl");
  }
  // Evaluated on the training data backwards, at a high learning rate: the loss increases after step 6.
  Args kind(const Args& more = {}) {
    return Args{"--eval_data",
                write_eval([](int i, int t) { return i * 31 + (15 - t) * 7; }),
                "--eval_steps",
                "2",
                "--save_steps",
                "2",
                "--learning_rate",
                "3e-2",
                "--lr_scheduler_type",
                "constant",
                "--load_best_model_at_end"} +
           more;
  }
  // Returns the steps of all evaluations, best first.
  std::vector<int64_t> steps_by_loss(const std::string& out, bool greater_is_better = false) {
    std::vector<std::pair<double, int64_t>> evaluations;
    for (const auto& line : read_lines(path(out) + "/eval_metrics.jsonl")) {
      evaluations.emplace_back(line["eval_loss"].get<double>() * (greater_is_better ? -1 : 1),
                               line["step"].get<int64_t>());
    }
    std::sort(evaluations.begin(), evaluations.end());
    std::vector<int64_t> steps;
    for (const auto& [loss, step] : evaluations) steps.push_back(step);
    return steps;
  }
  nlohmann::json state(const std::string& folder) {
    return nlohmann::json::parse(bytes_of(path(folder) + "/trainer_state.json"));
  }
  std::string checkpoint(const std::string& out, int64_t step) {
    return path(out) + "/checkpoint-" + std::to_string(step);
  }
  void expect_best(const std::string& out, int64_t step) {
    EXPECT_EQ(state(out)["best_global_step"], step);
    EXPECT_EQ(state(out)["best_model_checkpoint"], checkpoint(out, step));
    EXPECT_TRUE(bytes_of(path(out) + "/model/model.safetensors") ==
                bytes_of(checkpoint(out, step) + "/model.safetensors"));
    EXPECT_FALSE(bytes_of(path(out) + "/model/model.safetensors").empty());
  }
  std::vector<std::string> checkpoints(const std::string& out) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path(out))) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("checkpoint-")) names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
  }
};

TEST_F(BestModelRun, TheFinalModelIsTheBestUnderEveryLayout) {
  const std::vector<Args> kinds = {
      ranks(1, 4), ranks(2, 4) + Args{"--tensor_model_parallel_size", "2", "--metric_for_best_model", "eval_loss"},
      ranks(2, 4) + Args{"--pipeline_model_parallel_size", "2", "--metric_for_best_model", "perplexity"},
      ranks(2, 2) + Args{"--use_distributed_optimizer", "--overlap_grad_reduce", "--overlap_param_gather", "--bf16"}};
  for (const Args& each : kinds) {
    SCOPED_TRACE(::testing::PrintToString(each));
    fs::remove_all(path("out"));
    run("out", kind(each));
    const std::vector<int64_t> steps = steps_by_loss("out");
    ASSERT_EQ(steps.size(), 6u);
    ASSERT_NE(steps.front(), 12);  // otherwise the last model would pass the test
    expect_best("out", steps.front());
    // The log of the best evaluation has the metric.
    const auto lines = read_lines(path("out/eval_metrics.jsonl"));
    const auto best =
        std::find_if(lines.begin(), lines.end(), [&](const auto& line) { return line["step"] == steps[0]; });
    const bool is_loss = std::find(each.begin(), each.end(), "perplexity") == each.end();
    const double loss = (*best)["eval_loss"].get<double>();
    EXPECT_NEAR(state("out")["best_metric"].get<double>(), is_loss ? loss : std::exp(loss), 1e-9 * std::exp(loss));
  }
}

TEST_F(BestModelRun, GreaterMayBeBetter) {
  run("out", kind(ranks(1, 4) + Args{"--greater_is_better", "true"}));
  expect_best("out", steps_by_loss("out", true).front());
}

TEST_F(BestModelRun, TheBestCheckpointIsKeptBesidesTheNewest) {
  run("out", kind(ranks(1, 4) + Args{"--save_total_limit", "1"}));
  const int64_t best = steps_by_loss("out").front();
  EXPECT_THAT(checkpoints("out"), ElementsAre("checkpoint-12", "checkpoint-" + std::to_string(best)));
  expect_best("out", best);
}

// Without load_best_model_at_end the best checkpoint is kept and recorded, and the model is the last one.
TEST_F(BestModelRun, AMetricAloneKeepsTheBest) {
  run("out", kind(ranks(1, 4) + Args{"--save_total_limit", "1", "--load_best_model_at_end", "false",
                                     "--metric_for_best_model", "loss"}));
  const int64_t best = steps_by_loss("out").front();
  EXPECT_EQ(state("out")["best_model_checkpoint"], checkpoint("out", best));
  EXPECT_TRUE(bytes_of(path("out/model/model.safetensors")) == bytes_of(path("out/checkpoint-12/model.safetensors")));
}

// An evaluation that is better than all before but not saved has no checkpoint: the best one before it is kept.
TEST_F(BestModelRun, OnlyWhatIsSavedCanBeLoaded) {
  const Args words = kind(ranks(1, 4) + Args{"--eval_steps", "1", "--save_steps", "4", "--learning_rate", "1e-2"});
  write_eval([](int i, int t) { return i * 31 + t * t * 13; });  // replaces the file that kind() has written
  run("out", words);
  std::map<int64_t, double> losses;
  for (const auto& line : read_lines(path("out/eval_metrics.jsonl"))) {
    losses[line["step"].get<int64_t>()] = line["eval_loss"].get<double>();
  }
  int64_t best = 1, saved = 0;
  for (int64_t step = 1; step <= 12; ++step) {
    if (losses.at(step) < losses.at(best)) best = step;
    if (step % 4 == 0 && best == step) saved = step;
  }
  ASSERT_GT(saved, 0);
  ASSERT_GT(best, saved);
  EXPECT_EQ(state("out")["best_global_step"], best);
  EXPECT_EQ(state("out")["best_model_checkpoint"], checkpoint("out", saved));
  EXPECT_TRUE(bytes_of(path("out/model/model.safetensors")) ==
              bytes_of(checkpoint("out", saved) + "/model.safetensors"));
}

// In the same folder, and in another one, which then does not contain it.
TEST_F(BestModelRun, AResumedRunKnowsTheBestSoFar) {
  run("whole", kind(ranks(2, 2)));
  const int64_t best = steps_by_loss("whole").front();
  ASSERT_LT(best, 8);
  fs::create_directories(path("killed"));
  for (int64_t step = 2; step <= 8; step += 2) {
    fs::copy(checkpoint("whole", step), checkpoint("killed", step), fs::copy_options::recursive);
  }
  for (const char* file : {".concord-run.json", "metrics.jsonl", "eval_metrics.jsonl"}) {
    fs::copy(path("whole") + "/" + file, path("killed"));
  }
  const Args resumed = kind(ranks(2, 2) + Args{"--resume_from_checkpoint", checkpoint("killed", 8)});
  for (const char* out : {"elsewhere", "killed"}) {
    run(out, resumed);
    EXPECT_EQ(state(out)["best_global_step"], best);
    EXPECT_EQ(state(out)["best_metric"], state("whole")["best_metric"]);
    EXPECT_EQ(state(out)["best_model_checkpoint"], checkpoint("killed", best));
    EXPECT_TRUE(bytes_of(path(out) + "/model/model.safetensors") == bytes_of(path("whole/model/model.safetensors")));
  }
  run("third", kind(ranks(2, 2) + Args{"--resume_from_checkpoint", checkpoint("elsewhere", 10)}));
  EXPECT_EQ(state("third")["best_model_checkpoint"], checkpoint("killed", best));
  // It was removed: the run logs this, and continues.
  fs::remove_all(checkpoint("killed", best));
  TrainProgram program(run_args("gone", resumed));
  EXPECT_EQ(program.exit_code(), 0) << program.err();
  EXPECT_THAT(program.err(), HasSubstr("no longer exists"));
  EXPECT_EQ(state("gone")["best_global_step"], best);
}

TEST_F(BestModelRun, SettingsThatDoNotFitAreRefused) {
  const auto refused = [&](const Args& more) {
    TrainProgram program(run_args("out", kind(ranks(1, 4) + more)));
    EXPECT_EQ(program.exit_code(), 2);
    return program.err();
  };
  EXPECT_THAT(refused({"--eval_strategy", "epoch"}), HasSubstr("to be the same, steps or epoch, but they are epoch"));
  EXPECT_THAT(refused({"--eval_strategy", "no"}), HasSubstr("but they are no and steps"));
  EXPECT_THAT(refused({"--save_steps", "3"}), HasSubstr("multiple of eval_steps, but they are 3 and 2"));
  EXPECT_THAT(refused({"--save_steps", "0.5"}), HasSubstr("but they are 0.5 and 2, a number and a share"));
  EXPECT_THAT(refused({"--save_steps", "0.5", "--eval_steps", "0.2"}), HasSubstr("but they are 0.5 and 0.2"));
  EXPECT_THAT(refused({"--metric_for_best_model", "accuracy"}), HasSubstr("perplexity"));
}

}  // namespace
}  // namespace concord::testing_processes
