// Training whose steps are validated after the fact: as without it in every result, and the stages of a pipeline do not
// wait for each other between two steps.
#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>

#include <chrono>
#include <fstream>

#include "core/ops/derivative.h"
#include "core/ops/grad_sink.h"
#include "tests/processes/group_job.h"
#include "trainer/trainer.h"

namespace concord::tests {
namespace {

using ::testing::ElementsAre;

constexpr int kSamples = 64;
constexpr auto kHang = std::chrono::seconds(100);

std::string write_samples(const std::string& folder) {
  std::ofstream file(folder + "/data.jsonl");
  for (int i = 0; i < kSamples; ++i) {
    file << "{\"input_ids\": [";
    for (int t = 0; t < 12; ++t) file << (t ? ", " : "") << (i * i * 31 + t * 7) % 300;
    file << "]}\n";
  }
  return folder + "/data.jsonl";
}

struct HowToTrain {
  std::string kind = "zb-h1";
  int64_t pp = 2;
  bool ahead = true;
  int64_t max_steps = 8;
  int64_t logging_steps = 3;
  double max_grad_norm = 1;
  std::vector<std::shared_ptr<TrainerCallback>> callbacks = {};
  ForwardStep forward_step = {};
};

TrainingArguments arguments_of(const HowToTrain& run, const std::string& folder) {
  TrainingArguments a;
  a.model.config = std::string(CONCORD_GOLDEN) + "/hf/qwen2-tiny";
  a.data.path = folder + "/data.jsonl";
  a.output.dir = folder + (run.ahead ? "/ahead" : "/waiting");
  a.steps.max_steps = run.max_steps;
  a.data.micro_batch_size = 1;
  a.data.accumulation = 2 * run.pp;
  a.job.pipeline_model_parallel_size = run.pp;
  a.pipeline.schedule = run.kind;
  a.lr.learning_rate = 1e-2;
  a.optimizer.max_grad_norm = run.max_grad_norm;
  a.logging.steps = static_cast<double>(run.logging_steps);
  a.saving.strategy = "no";
  a.precision.check_for_nan_in_loss_and_grad = false;  // one rank would find it by itself
  a.pipeline.enable_optimizer_post_validation = run.ahead;
  return a;
}

// What a run tells.
struct Told : TrainerCallback {
  std::vector<StepReport> logs;
  std::vector<int64_t> begun, ended, saved;
  void on_step_begin(const TrainerState& state, TrainerControl&) override { begun.push_back(state.global_step); }
  void on_step_end(const TrainerState& state, TrainerControl&) override { ended.push_back(state.global_step); }
  void on_log(const TrainerState&, const StepReport& report, TrainerControl&) override { logs.push_back(report); }
  void on_save(const TrainerState& state, const std::string&, TrainerControl&) override {
    saved.push_back(state.global_step);
  }
};

struct Result {
  std::shared_ptr<Told> told = std::make_shared<Told>();
  TrainOutput output;
  std::vector<at::Tensor> parameters;
};

// Every rank of |job| calls it.
Result train(const HowToTrain& run, ParallelContext& job, const std::string& folder) {
  Providers providers;
  providers.forward_step = run.forward_step;
  TrainingArguments arguments = arguments_of(run, folder);
  check_arguments(&arguments, job.world());
  Trainer trainer(plan_training(arguments, job.rank(), job.world(), providers.datasets), job, providers);
  Result result;
  trainer.add_callback(result.told);
  for (const auto& callback : run.callbacks) trainer.add_callback(callback);
  result.output = trainer.train();
  for (const Parameter* parameter : trainer.model().parameters()) {
    result.parameters.push_back(parameter->value.detach().clone());
  }
  return result;
}

void expect_same(const Result& ahead, const Result& waiting) {
  ASSERT_EQ(ahead.told->logs.size(), waiting.told->logs.size());
  for (size_t i = 0; i < ahead.told->logs.size(); ++i) {
    const StepReport &a = ahead.told->logs[i], &b = waiting.told->logs[i];
    EXPECT_EQ(a.step, b.step);
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_EQ(a.grad_norm, b.grad_norm);
    EXPECT_EQ(a.learning_rate, b.learning_rate);
    EXPECT_EQ(a.tokens, b.tokens);
  }
  EXPECT_EQ(ahead.told->begun, waiting.told->begun);
  EXPECT_EQ(ahead.told->ended, waiting.told->ended);
  EXPECT_EQ(ahead.told->saved, waiting.told->saved);
  EXPECT_EQ(ahead.output.global_step, waiting.output.global_step);
  EXPECT_EQ(ahead.output.training_loss, waiting.output.training_loss);
  EXPECT_EQ(ahead.output.reason, waiting.output.reason);
  for (size_t i = 0; i < ahead.parameters.size(); ++i) EXPECT_TRUE(ahead.parameters[i].equal(waiting.parameters[i]));
}

Result expect_run_of_waiting(HowToTrain run, ParallelContext& job, const std::string& folder) {
  run.ahead = false;
  const Result waiting = train(run, job, folder);
  run.ahead = true;
  const Result ahead = train(run, job, folder);
  expect_same(ahead, waiting);
  return ahead;
}

InitializeArgs layout_of(const HowToTrain& run) {
  return {.pipeline_model_parallel_size = run.pp,
          .virtual_pipeline_model_parallel_size = run.kind == "zb-v" ? 2 : 1,
          .ddp_timeout = 120};
}

class TrainAhead : public ::testing::Test {
 protected:
  void SetUp() override { write_samples(folder_.path()); }
  TemporaryFolder folder_;
};

// Norms go from above the limit to below it and back, so steps are right, taken back and waited for.
TEST_F(TrainAhead, LogsCountsAndTrainsAsTheRunThatWaits) {
  for (const std::string kind : {"zb-h1", "zb-v"}) {
    const HowToTrain run{.kind = kind, .max_grad_norm = 4};
    expect_job(2, layout_of(run), [&](ParallelContext& job) {
      const Result result = expect_run_of_waiting(run, job, folder_.path());
      EXPECT_EQ(result.output.global_step, 8);
      EXPECT_EQ(result.told->logs.size(), 3u) << "steps 3, 6 and the last";
    });
  }
}

// Asks for something on one rank, at a step at which nothing is due.
struct Wish : TrainerCallback {
  int64_t step;
  bool saves;
  Wish(int64_t at, bool saves_it) : step(at), saves(saves_it) {}
  void on_step_end(const TrainerState& state, TrainerControl& control) override {
    if (state.global_step != step) return;
    (saves ? control.should_save : control.should_training_stop) = true;
  }
};

TEST_F(TrainAhead, WhatOneRankWantsHappensAfterItsStepOnAll) {
  HowToTrain run;
  expect_job(2, layout_of(run), [&](ParallelContext& job) {
    if (job.rank() == 1) run.callbacks = {std::make_shared<Wish>(2, true), std::make_shared<Wish>(5, false)};
    const Result result = expect_run_of_waiting(run, job, folder_.path());
    EXPECT_THAT(result.told->saved, ElementsAre(2));
    EXPECT_THAT(result.told->begun, ElementsAre(0, 1, 2, 3, 4))
        << "each once: those that were thrown away do not count";
    EXPECT_EQ(result.output.global_step, 5);
    EXPECT_EQ(result.told->logs.back().step, 5);
    const auto bytes = [&](const std::string& mode) {
      std::ifstream file(folder_.path() + mode + "/checkpoint-2/model.safetensors", std::ios::binary);
      return std::string(std::istreambuf_iterator<char>(file), {});
    };
    EXPECT_GT(bytes("/ahead").size(), 1000u);
    EXPECT_TRUE(bytes("/ahead") == bytes("/waiting"));
  });
}

// One rank's own code wants the end, or a save, where the ranks had agreed already on what follows the step.
struct LateWish : TrainerCallback {
  void on_log(const TrainerState& state, const StepReport&, TrainerControl& control) override {
    if (state.global_step == 3) control.should_save = true;
    if (state.global_step == 6) control.should_training_stop = true;
  }
};

TEST_F(TrainAhead, WhatOneRankWantsInOnLogHappensOnAllAtTheSameStep) {
  HowToTrain run;
  expect_job(2, layout_of(run), [&](ParallelContext& job) {
    if (job.rank() == 1) run.callbacks = {std::make_shared<LateWish>()};
    const Result result = expect_run_of_waiting(run, job, folder_.path());
    EXPECT_THAT(result.told->saved, ElementsAre(3));
    EXPECT_EQ(result.output.global_step, 6);
  });
}

// A hidden state with a gradient that is not finite, at a step at which nothing is due. Nobody checks for it
// (arguments_of), so the step is skipped, on all ranks.
TEST_F(TrainAhead, AGradientThatIsNotFiniteSkipsItsStepWhereNobodyChecksForIt) {
  HowToTrain run{.max_grad_norm = 0};
  expect_job(2, layout_of(run), [&](ParallelContext& job) {
    for (const bool ahead : {true, false}) {
      int forwards = 0;
      run.ahead = ahead;
      run.forward_step = [&](ModelChunk& chunk, const at::Tensor& hidden, const MicroBatch& batch) {
        const at::Tensor output = chunk.forward(hidden, batch);
        // The second step's second micro-batch.
        return chunk.is_last() && forwards++ == 5 ? output.mul(1e38).mul(1e38) : output;
      };
      const Result result = train(run, job, folder_.path());
      EXPECT_EQ(result.output.global_step, run.max_steps) << ahead;
      int64_t skipped = 0;
      for (const StepReport& report : result.told->logs) skipped += report.skipped;
      EXPECT_EQ(skipped, 1) << ahead;
      for (const at::Tensor& parameter : result.parameters) EXPECT_TRUE(parameter.isfinite().all().item<bool>());
    }
  });
}

// The last stage's last weight gradient of the first step waits until the stage before it has begun the second step,
// and so those before that one have.
TEST_F(TrainAhead, TheNextStepsForwardsBeginBeforeTheLastStageHasEndedItsStep) {
  for (const auto& [kind, pp] : {std::pair<std::string, int64_t>("zb-h1", 2), {"zb-h1", 4}}) {
    HowToTrain run{.kind = kind, .pp = pp, .max_steps = 2, .logging_steps = 100, .max_grad_norm = 0};
    expect_job(static_cast<int>(pp), layout_of(run), [&](ParallelContext& job) {
      int forwards = 0;
      const int each = static_cast<int>(2 * pp);
      run.forward_step = [&](ModelChunk& chunk, const at::Tensor& hidden, const MicroBatch& batch) {
        const int number = forwards++;
        if (job.rank() == pp - 2 && number == each) job.store().set("second step", "begun");
        const at::Tensor output = chunk.forward(hidden, batch);
        if (!chunk.is_last() || number != each - 1) return output;
        DeferredGrads* later = chunk.parameters()[0].sink.later;
        return ops::differentiable(
            "wait", {output}, [&] { return ops::Forward{output.clone(), {}}; },
            [&job, later](const ops::Backward& b) {
              later->put([&job] { EXPECT_EQ(job.store().get("second step", kHang), "begun"); });
              return ops::Tensors{b.grad};
            });
      };
      EXPECT_EQ(train(run, job, folder_.path()).output.global_step, 2);
    });
  }
}

}  // namespace
}  // namespace concord::tests
