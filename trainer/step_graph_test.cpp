// Training with replayed steps, on a device that records operators: the bits are those of steps that are not replayed.
#include "trainer/step_graph.h"

#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/mesh/initialize.h"
#include "core/torch/testing/recording_device.h"
#include "platform/loader/error.h"
#include "tests/processes/token_rows.h"
#include "tests/temporary_folder.h"
#include "trainer/trainer.h"

namespace concord {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Args = std::vector<std::string>;

Args operator+(Args args, const Args& more) {
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

PassInputs inputs_of(int64_t rows, int64_t length, double weight = 1) {
  const at::Tensor ids = at::zeros({rows, length}, at::kLong);
  return {.batches = {{.input_ids = ids, .labels = ids}}, .weights = {weight}, .router_weights = {1}};
}

TEST(PassInputs, AreAlikeButForTheirTokens) {
  const PassInputs one = inputs_of(2, 8);
  PassInputs other = inputs_of(2, 8);
  other.batches[0].input_ids.fill_(3);
  EXPECT_TRUE(can_replay(one, other));
  EXPECT_FALSE(can_replay(one, inputs_of(2, 9)));
  EXPECT_FALSE(can_replay(one, inputs_of(4, 4)));
  EXPECT_FALSE(can_replay(one, inputs_of(2, 8, 0.5)));
  EXPECT_FALSE(can_replay({}, {}));
  other.batches.push_back(other.batches[0]);
  EXPECT_FALSE(can_replay(one, other));
  other = inputs_of(2, 8);
  other.loss_scale = 2;
  EXPECT_FALSE(can_replay(one, other));
  other = inputs_of(2, 8);
  other.router_weights = {2};
  EXPECT_FALSE(can_replay(one, other));
  other = inputs_of(2, 8);
  other.has_fp8_history = true;
  EXPECT_FALSE(can_replay(one, other)) << "the first step scales each tensor by its own values";
  other = inputs_of(2, 8);
  other.batches[0].cu_seqlens = {0, 3, 8};
  EXPECT_FALSE(can_replay(other, other)) << "the host reads where sequences end";
  other = inputs_of(2, 8);
  other.batches[0].position_ids = at::zeros({2, 8}, at::kLong);
  EXPECT_FALSE(can_replay(other, other));
}

class ReplayedTraining : public ::testing::Test {
 protected:
  // A run of seven steps of two micro-batches, in which each step's losses are logged.
  Args run_of(const std::string& model, const Args& more = {}) {
    return Args{"--model", CONCORD_GOLDEN "/hf/" + model, "--train_data", data_} +
           Args{"--max_steps", "7", "--logging_steps", "1", "--learning_rate", "1e-2", "--save_strategy", "no"} +
           Args{"--per_device_train_batch_size", "2", "--global_batch_size", "4", "--output_dir", folder_ / "out"} +
           more;
  }

  // What is logged of each step.
  struct Logged : TrainerCallback {
    void on_log(const TrainerState&, const StepReport& report, TrainerControl&) override {
      values.push_back(at::scalar_tensor(report.loss, at::kDouble));
      for (const auto& [name, value] : report.extra) {
        const bool is_computed = name.find("loss") != std::string::npos || name.find("load") != std::string::npos;
        if (is_computed) values.push_back(at::scalar_tensor(value, at::kDouble));
      }
    }
    std::vector<at::Tensor> values;
  };

  // What is logged and the final weights of a run, on the device that |how| makes.
  std::vector<at::Tensor> train(
      const Args& args, const std::function<void()>& how = [] {},
      const std::function<void(Trainer&)>& begins = [](Trainer&) {}) {
    device = std::make_unique<FakeDevice>();
    how();
    CommandLine line = parse_command_line(args);
    line.arguments = resolve_arguments(line.arguments, 1);
    check_arguments(line.arguments, 1);
    TrainingPlan plan = plan_training(line.arguments, 0, 1);
    ParallelContext& job = initialize(initialize_args(plan));
    std::vector<at::Tensor> values;
    {
      const auto logged = std::make_shared<Logged>();
      Trainer trainer(std::move(plan), job);
      trainer.add_callback(logged);
      begins(trainer);
      trainer.train();
      released_in_time_ = device->releases;
      values = logged->values;
      for (const Parameter* each : trainer.model().parameters()) values.push_back(each->value.detach().clone());
    }
    finalize();
    return values;
  }

  static void expect_same(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected) {
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(got[i].equal(expected[i])) << "value " << i;
  }

  // Runs twice, without and with replays, and expects |replays| of them.
  void expect_replays(const Args& args, int replays) {
    const auto expected = train(args + Args{"--replay_steps", "false"});
    EXPECT_EQ(device->replays + device->calls, 0);
    expect_same(train(args), expected);
    EXPECT_EQ(device->replays, replays);
  }

  int released_in_time_ = 0;  // recordings, before the end of the trainer of the last run
  tests::TemporaryFolder folder_;
  std::string data_ = testing_processes::write_jsonl(folder_ / "data.jsonl", 64, 250);
};

// The first two steps are enqueued, the third too, as what is to be recorded.
TEST_F(ReplayedTraining, HasTheBitsOfStepsThatAreNotReplayed) {
  for (const char* model : {"qwen2-tiny", "qwen2-tied", "qwen3-tiny"}) {
    SCOPED_TRACE(model);
    expect_replays(run_of(model), 4);
  }
  expect_replays(run_of("llama-tiny", {"--bf16", "true"}), 4);
  expect_replays(run_of("qwen2-tiny", {"--recompute_granularity", "full", "--recompute_method", "uniform"}), 4);
  expect_replays(run_of("qwen2-tiny", {"--lora_rank", "4", "--finetuning_type", "lora"}), 4);
  expect_replays(run_of("qwen2-tied", {"--loss_chunk_size", "100"}), 4);  // whose gradients come in forward
}

// Which expert a token goes to is another one in each step; what routers are told of it is a result.
TEST_F(ReplayedTraining, HasTheBitsOfExperts) {
  const Args balanced = {"--moe_router_load_balancing_type", "global_aux_loss", "--moe_aux_loss_coeff", "0.1"};
  expect_replays(run_of("qwen3-moe-tiny", balanced + Args{"--moe_z_loss_coeff", "0.01"}), 4);
  expect_replays(run_of("qwen2-moe-tiny", {"--moe_expert_capacity_factor", "1"}), 4);
}

// Delayed scaling has nothing to go by in the first step.
TEST_F(ReplayedTraining, HasTheBitsOf8BitFloats) {
  const Args evaluates = {"--bf16", "true", "--eval_data", data_, "--eval_steps", "1", "--eval_iters", "1"};
  expect_replays(run_of("qwen2-tiny", evaluates + Args{"--fp8", "hybrid"}), 3);
  expect_replays(run_of("qwen2-tiny", {"--bf16", "true", "--fp8", "e4m3", "--fp8_recipe", "blockwise"}), 4);
}

// The stages' results are those of the evaluation in between; the error has to be about the step's.
TEST_F(ReplayedTraining, NamesTheMicroBatchOfANotFiniteLossAfterAnEvaluation) {
  struct Poison : TrainerCallback {
    void on_step_begin(const TrainerState& state, TrainerControl&) override {
      const at::NoGradGuard no_grad;
      if (state.global_step == 5) model->parameters().front()->value.fill_(NAN);
    }
    VirtualModels* model = nullptr;
  };
  const auto poison = std::make_shared<Poison>();
  const auto begins = [&](Trainer& trainer) {
    poison->model = &trainer.model();
    trainer.add_callback(poison);
  };
  const Args evaluates = {"--eval_data", data_, "--eval_steps", "1", "--eval_iters", "1"};
  EXPECT_THAT([&] { train(run_of("qwen2-tiny", evaluates + Args{"--rerun_mode", "disabled"}), [] {}, begins); },
              ThrowsMessage<Error>(HasSubstr("the loss of micro-batch 0 of step 6 is NaN")));
  EXPECT_EQ(device->replays, 3);
  finalize();
  expect_replays(run_of("qwen2-tiny", evaluates), 4);
}

// Batches grow from 2 samples to 4 after some steps: recorded again.
TEST_F(ReplayedTraining, RecordsAnewWhereStepsChange) {
  expect_replays(run_of("qwen2-tiny", {"--rampup_batch_size", "2,2,10", "--max_steps", "9"}), 3);
}

TEST_F(ReplayedTraining, EnqueuesWhereNoTwoStepsAreAlike) {
  for (const Args& more : {Args{"--hidden_dropout", "0.1"}, Args{"--attention_dropout", "0.1"},
                           Args{"--log_token_metrics", "true"}, Args{"--timing_log_level", "2"}}) {
    SCOPED_TRACE(more[0]);
    train(run_of("qwen2-tiny", more));
    EXPECT_EQ(device->replays + device->calls, 0);
  }
}

// A recording may fail at any call; what it has seen so far must leave no trace.
TEST_F(ReplayedTraining, EnqueuesWhereTheDeviceCannotRecord) {
  const Args args = run_of("qwen2-tiny");
  const auto expected = train(args);
  const int64_t all = device->calls;
  ASSERT_GT(all, 100);
  for (int64_t calls = all; calls > 0; calls -= all / 3) {
    SCOPED_TRACE(calls);
    expect_same(train(args, [calls] { device->fails_after = calls; }), expected);
    EXPECT_EQ(device->replays, 0);
    EXPECT_EQ(released_in_time_, 1) << "its memory is needed for the steps that are enqueued";
    EXPECT_EQ(device->releases, 1);
  }
  expect_same(train(args, [] { device->refuses = true; }), expected);
  expect_same(train(args, [] { device->has_room = false; }), expected);
  EXPECT_EQ(device->calls, 0);
}

}  // namespace
}  // namespace concord
