// MoE models through the program: the same training with every layout, including router losses, and checkpoints that
// resume bitwise identically.
#include "tests/processes/training/resume_runs.h"

namespace concord::testing_processes {
namespace {

class TrainExperts : public TrainResume {
 protected:
  // Steps of 4 samples. The router losses are large, so that a wrong scale is detected, and per sequence, so that they
  // do not depend on the assignment of samples to micro-batches.
  Args expert_args(const std::string& out, const Args& more) {
    return Args{"--model",
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
  std::vector<nlohmann::json> train(const std::string& out, const Args& more) {
    TrainProgram program(expert_args(out, more));
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

Args batches(int nproc, int rows, int accumulation) {
  return ranks(nproc, accumulation) + Args{"--per_device_train_batch_size", std::to_string(rows)};
}

TEST_F(TrainExperts, IsTheSameUnderEveryLayoutAndForEveryWeightingOfTokens) {
  const Layout micro_batches{"micro_batches", batches(1, 2, 2)},
      dp{"dp2_zero", batches(2, 1, 2) + Args{"--use_distributed_optimizer"}},
      cp{"cp2", batches(2, 2, 2) + Args{"--context_parallel_size", "2"}},
      tp{"tp2_sp", batches(2, 4, 1) + Args{"--tensor_model_parallel_size", "2", "--sequence_parallel"}},
      dp_ep{"dp4_ep2_zero",
            batches(4, 1, 1) + Args{"--use_distributed_optimizer", "--expert_model_parallel_size", "2"}},
      tp_ep{"tp2_ep2",
            batches(2, 4, 1) + Args{"--tensor_model_parallel_size", "2", "--sequence_parallel",
                                    "--expert_model_parallel_size", "2", "--expert_tensor_parallel_size", "1"}},
      pp_etp{"pp2_etp2", batches(4, 2, 1) + Args{"--pipeline_model_parallel_size", "2", "--expert_tensor_parallel_size",
                                                 "2", "--pipeline_schedule", "zb-h1"}},
      pp{"pp2", batches(2, 1, 4) + Args{"--pipeline_model_parallel_size", "2", "--pipeline_schedule", "zb-h1"}};
  const std::vector<std::pair<std::string, std::vector<Layout>>> cases = {
      {"true", {micro_batches, dp, cp, dp_ep}}, {"false", {micro_batches, cp, tp, pp, dp_ep, tp_ep, pp_etp}}};
  for (const auto& [per_token, layouts] : cases) {
    const Args how = {"--max_steps", "2", "--calculate_per_token_loss", per_token};
    const auto one = train("one_" + per_token, batches(1, 4, 1) + how);
    ASSERT_EQ(one.size(), 2u);
    for (const Layout& each : layouts) {
      SCOPED_TRACE(each.name + ", per token: " + per_token);
      expect_same_steps(one, train(each.name + per_token, each.args + how));
    }
  }
}

// fp16 gradients are scaled, including those of the router losses.
TEST_F(TrainExperts, ScalesTheLossesOfRoutersWithTheOthers) {
  const Args step =
      batches(1, 4, 1) + Args{"--max_steps", "1", "--fp16", "--calculate_per_token_loss", "false", "--loss_scale"};
  const auto one = train("one", step + Args{"1"}), scaled = train("scaled", step + Args{"1024"});
  ASSERT_EQ(one.size(), 1u);
  const double norm = one[0]["grad_norm"].get<double>();
  EXPECT_NEAR(scaled[0]["grad_norm"].get<double>(), norm, 0.01 * norm);
}

TEST_F(TrainExperts, ResumesToTheLastBit) {
  const Args how = batches(2, 2, 1) + Args{"--use_distributed_optimizer", "--save_steps", "2", "--max_steps"};
  train("whole", how + Args{"4"});
  train("resumed", how + Args{"4", "--resume_from_checkpoint", path("whole/checkpoint-2")});
  expect_same_tensors("whole/checkpoint-4", "resumed/checkpoint-4");
  train("other", batches(2, 4, 1) + Args{"--tensor_model_parallel_size", "2", "--max_steps", "4", "--save_steps", "4",
                                         "--resume_from_checkpoint", path("whole/checkpoint-4")});
  expect_same_bytes("whole/checkpoint-4/model.safetensors", "other/model/model.safetensors");
}

// A checkpoint of one expert layout is resumed with others, compared by value. ResumeRow shows that each reads the
// bytes of the others.
TEST_F(TrainExperts, CheckpointsContinueUnderOtherLayoutsOfExperts) {
  const Args ep = batches(4, 1, 1) + Args{"--use_distributed_optimizer", "--expert_model_parallel_size", "2"};
  const Args save = {"--save_steps", "2", "--max_steps"};
  train("whole", ep + save + Args{"4"});
  train("resumed", ep + save + Args{"4", "--resume_from_checkpoint", path("whole/checkpoint-2")});
  expect_same_tensors("whole/checkpoint-4", "resumed/checkpoint-4");
  const std::vector<Layout> others = {
      {"one", batches(1, 4, 1)},
      {"tp2_ep2", batches(2, 4, 1) + Args{"--tensor_model_parallel_size", "2", "--sequence_parallel",
                                          "--expert_model_parallel_size", "2", "--expert_tensor_parallel_size", "1"}},
      {"dp2_etp2_zero", batches(2, 2, 1) + Args{"--expert_tensor_parallel_size", "2", "--use_distributed_optimizer"}}};
  for (const Layout& other : others) {
    SCOPED_TRACE(other.name);
    const auto wanted = read_steps(path("whole"));
    const auto got =
        train(other.name, other.args + save + Args{"4", "--resume_from_checkpoint", path("whole/checkpoint-2")});
    ASSERT_EQ(got.size(), 2u);
    for (size_t i = 0; i < 2; ++i) {
      const double norm = wanted[i + 2]["grad_norm"].get<double>();
      EXPECT_NEAR(got[i]["grad_norm"].get<double>(), norm, 2e-5 * norm);
      EXPECT_NEAR(got[i]["loss"].get<double>(), wanted[i + 2]["loss"].get<double>(), 2e-5);
    }
  }
}

// The updates of the biases are so large that different experts are chosen afterwards.
TEST_F(TrainExperts, BiasesOfExpertsFollowTheLoadOfAllRanks) {
  std::ofstream(path("config.json")) << R"({"model_type": "glm4_moe", "vocab_size": 256, "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "initializer_range": 0.2})";
  const auto steps = [&](const std::string& out, const Args& more) {
    TrainProgram program(Args{"--model_config", path("config.json"), "--train_data",
                              write_jsonl(path("data.jsonl"), 64, 250), "--output_dir", path(out), "--learning_rate",
                              "1e-3", "--logging_steps", "1", "--max_steps", "3"} +
                         more);
    EXPECT_EQ(program.exit_code(), 0) << program.err();
    return read_steps(path(out));
  };
  const Args rate = {"--moe_router_bias_update_rate", "0.3"};
  const auto one = steps("one", batches(1, 4, 1) + rate);
  const auto fixed = steps("fixed", batches(1, 4, 1) + Args{"--moe_router_bias_update_rate", "0"});
  const auto split = steps(
      "split", batches(4, 1, 2) + rate +
                   Args{"--tensor_model_parallel_size", "2", "--sequence_parallel", "--expert_model_parallel_size", "4",
                        "--expert_tensor_parallel_size", "1", "--use_distributed_optimizer"});
  ASSERT_EQ(one.size(), 3u);
  ASSERT_EQ(split.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    for (const char* key : {"loss", "grad_norm", "expert_load_max_layer_1"}) {
      const double wanted = one[i][key].get<double>();
      EXPECT_NEAR(split[i][key].get<double>(), wanted, 2e-5 * wanted) << key << " of step " << i + 1;
    }
  }
  EXPECT_EQ(fixed[0]["loss"], one[0]["loss"]);
  EXPECT_GT(std::abs(fixed[1]["loss"].get<double>() - one[1]["loss"].get<double>()), 1e-3);
}

TEST_F(TrainExperts, ArgumentsThatAreNotThereYetAreRefused) {
  TrainProgram program(expert_args("out", {"--moe_router_load_balancing_type", "sinkhorn"}));
  EXPECT_EQ(program.exit_code(), 2);
  EXPECT_NE(program.err().find("seq_aux_loss"), std::string::npos) << program.err();
}

}  // namespace
}  // namespace concord::testing_processes
