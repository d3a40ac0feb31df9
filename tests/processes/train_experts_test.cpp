// Models with experts through the program: the same training under every layout, losses of routers included, and
// checkpoints that continue to the last bit.
#include "tests/processes/resume_runs.h"

namespace concord::testing_processes {
namespace {

class TrainExperts : public TrainResume {
 protected:
  // Steps of 4 samples. The losses of routers are large, so that a wrong scale is seen, and per sequence, so that they
  // do not depend on how samples are put into micro-batches.
  Words expert_words(const std::string& out, const Words& more) {
    return Words{"--model",
                 kGolden + "/hf/qwen2-moe-tiny",
                 "--train_data",
                 write_jsonl(path("data.jsonl"), 64, 250),
                 "--output_dir",
                 path(out),
                 "--learning_rate",
                 "1e-3",
                 "--logging_steps",
                 "1",
                 "--moe_router_load_balancing_type",
                 "seq_aux_loss",
                 "--moe_aux_loss_coeff",
                 "1",
                 "--moe_z_loss_coeff",
                 "0.1"} +
           more;
  }
  std::vector<nlohmann::json> train(const std::string& out, const Words& more) {
    TrainProgram program(expert_words(out, more));
    EXPECT_EQ(program.exit_code(), 0) << program.err();
    return read_steps(path(out));
  }
};

void expect_same_steps(const std::vector<nlohmann::json>& a, const std::vector<nlohmann::json>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    for (const char* key :
         {"loss", "grad_norm", "load_imbalance", "expert_load_min_layer_1", "router_aux_loss", "router_z_loss"}) {
      const double one = a[i][key].get<double>();
      EXPECT_NEAR(b[i][key].get<double>(), one, 2e-5 * one) << key << " of step " << i + 1;
    }
  }
}

Words batches(int nproc, int rows, int accumulation) {
  return ranks(nproc, accumulation) + Words{"--per_device_train_batch_size", std::to_string(rows)};
}

TEST_F(TrainExperts, IsTheSameUnderEveryLayoutAndForEveryWeightingOfTokens) {
  const Layout micro_batches{"micro_batches", batches(1, 2, 2)},
      dp{"dp2_zero", batches(2, 1, 2) + Words{"--use_distributed_optimizer"}},
      cp{"cp2", batches(2, 2, 2) + Words{"--context_parallel_size", "2"}},
      tp{"tp2_sp", batches(2, 4, 1) + Words{"--tensor_model_parallel_size", "2", "--sequence_parallel"}},
      pp{"pp2", batches(2, 1, 4) + Words{"--pipeline_model_parallel_size", "2", "--pipeline_schedule", "zb-h1"}};
  const std::vector<std::pair<std::string, std::vector<Layout>>> cases = {{"true", {micro_batches, dp, cp}},
                                                                          {"false", {micro_batches, cp, tp, pp}}};
  for (const auto& [per_token, layouts] : cases) {
    const Words how = {"--max_steps", "2", "--calculate_per_token_loss", per_token};
    const auto one = train("one_" + per_token, batches(1, 4, 1) + how);
    ASSERT_EQ(one.size(), 2u);
    for (const Layout& each : layouts) {
      SCOPED_TRACE(each.name + ", per token: " + per_token);
      expect_same_steps(one, train(each.name + per_token, each.words + how));
    }
  }
}

// The gradient of fp16 is scaled, and so is that of the routers' losses.
TEST_F(TrainExperts, ScalesTheLossesOfRoutersWithTheOthers) {
  const Words step =
      batches(1, 4, 1) + Words{"--max_steps", "1", "--fp16", "--calculate_per_token_loss", "false", "--loss_scale"};
  const auto one = train("one", step + Words{"1"}), scaled = train("scaled", step + Words{"1024"});
  ASSERT_EQ(one.size(), 1u);
  const double norm = one[0]["grad_norm"].get<double>();
  EXPECT_NEAR(scaled[0]["grad_norm"].get<double>(), norm, 0.01 * norm);
}

TEST_F(TrainExperts, ResumesToTheLastBit) {
  const Words how = batches(2, 2, 1) + Words{"--use_distributed_optimizer", "--save_steps", "2", "--max_steps"};
  train("whole", how + Words{"4"});
  train("resumed", how + Words{"4", "--resume_from_checkpoint", path("whole/checkpoint-2")});
  expect_same_tensors("whole/checkpoint-4", "resumed/checkpoint-4");
  train("other", batches(2, 4, 1) + Words{"--tensor_model_parallel_size", "2", "--max_steps", "4", "--save_steps", "4",
                                          "--resume_from_checkpoint", path("whole/checkpoint-4")});
  expect_same_bytes("whole/checkpoint-4/model.safetensors", "other/model/model.safetensors");
}

TEST_F(TrainExperts, ArgumentsThatAreNotThereYetAreRefused) {
  TrainProgram program(expert_words("out", {"--moe_router_load_balancing_type", "sinkhorn"}));
  EXPECT_EQ(program.exit_code(), 2);
  EXPECT_NE(program.err().find("seq_aux_loss"), std::string::npos) << program.err();
}

}  // namespace
}  // namespace concord::testing_processes
