// The parameters of a stage: their order, parts and refusals.
#include "core/models/parameter_plan.h"

#include <gmock/gmock.h>

#include "core/models/testing/small_models.h"

namespace concord {
namespace {

using namespace testing_models;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> names_of(const std::vector<ParameterPlan>& plans, bool partial_only = false) {
  std::vector<std::string> names;
  for (const ParameterPlan& plan : plans) {
    if (plan.partial_over_tp || !partial_only) names.push_back(plan.spec.name);
  }
  return names;
}

TEST(ParameterPlan, ListsAStageInTheOrderOfUse) {
  const StageLayers first{.embedding = true, .first_layer = 0, .layers = 1, .mtp_layers = 0, .loss = false};
  EXPECT_THAT(names_of(plan_parameters(small("qwen2"), first, {})),
              ElementsAre("model.embed_tokens.weight", "model.layers.0.input_layernorm.weight",
                          "model.layers.0.self_attn.qkv_proj.weight", "model.layers.0.self_attn.qkv_proj.bias",
                          "model.layers.0.self_attn.o_proj.weight", "model.layers.0.post_attention_layernorm.weight",
                          "model.layers.0.mlp.gate_up_proj.weight", "model.layers.0.mlp.down_proj.weight"));
  const StageLayers last{.embedding = false, .first_layer = 2, .layers = 0, .mtp_layers = 0, .loss = true};
  EXPECT_THAT(names_of(plan_parameters(small("qwen2"), last, {})), ElementsAre("model.norm.weight", "lm_head.weight"));
}

TEST(ParameterPlan, KnowsWhichGradientsArePartial) {
  const StageLayers one{.embedding = false, .first_layer = 0, .layers = 1, .mtp_layers = 0, .loss = false};
  const ModelConfig llama = small("llama", R"(, "attention_bias": true, "mlp_bias": true)");
  EXPECT_THAT(names_of(plan_parameters(llama, one, {.tp = 2, .sequence_parallel = true}), true),
              ElementsAre("model.layers.0.input_layernorm.weight", "model.layers.0.self_attn.o_proj.bias",
                          "model.layers.0.post_attention_layernorm.weight", "model.layers.0.mlp.down_proj.bias"));
  EXPECT_THAT(names_of(plan_parameters(llama, one, {.tp = 2}), true), ElementsAre());
  EXPECT_THAT(names_of(plan_parameters(llama, one, {.tp = 1, .sequence_parallel = true}), true), ElementsAre());
  EXPECT_THAT(names_of(plan_parameters(small("qwen3"), one, {.tp = 2}), true),
              ElementsAre("model.layers.0.self_attn.q_norm.weight", "model.layers.0.self_attn.k_norm.weight"));
}

TEST(ParameterPlan, ALayerWithExpertsHasStacksOfThem) {
  const StageLayers layer{.embedding = false, .first_layer = 1, .layers = 1, .mtp_layers = 0, .loss = false};
  const ModelConfig config = small("qwen2_moe", std::string(kExperts) + R"(, "mlp_only_layers": [0])");
  const auto plans = plan_parameters(config, layer, {.tp = 2, .sequence_parallel = true});
  const std::string mlp = "model.layers.1.mlp.";
  const std::vector<std::string> names = names_of(plans);
  EXPECT_THAT(std::vector(names.end() - 6, names.end()),
              ElementsAre(mlp + "router.weight", mlp + "experts.gate_up_proj.weight", mlp + "experts.down_proj.weight",
                          mlp + "shared_expert.gate_up_proj.weight", mlp + "shared_expert.down_proj.weight",
                          mlp + "shared_expert_gate.weight"));
  const ShardPlace place{{{{2, 1}, {2, 1}, {1, 0}}}};
  EXPECT_THAT(local_shape(plans[plans.size() - 5].spec, place), ElementsAre(3, 6, 16));
  EXPECT_THAT(local_shape(plans[plans.size() - 4].spec, place), ElementsAre(3, 16, 3));
  EXPECT_THAT(names_of(plans, true),
              ElementsAre("model.layers.1.input_layernorm.weight", "model.layers.1.post_attention_layernorm.weight",
                          mlp + "router.weight", mlp + "shared_expert_gate.weight"));
  const StageLayers dense{.embedding = false, .first_layer = 0, .layers = 1, .mtp_layers = 0, .loss = false};
  EXPECT_EQ(names_of(plan_parameters(config, dense, {})).back(), "model.layers.0.mlp.down_proj.weight");
}

TEST(ParameterPlan, PairsOfExpertsAreStacksCutAsTheExpertsAre) {
  const StageLayers layer{.embedding = false, .first_layer = 1, .layers = 1, .mtp_layers = 0, .loss = false};
  const ModelConfig config = small("qwen2_moe", kExperts);
  const auto plans = [&](const std::string& target, const std::function<void(AdapterConfig&)>& change) {
    AdapterConfig adapter;
    adapter.r = 4;
    set_targets({target}, &adapter);
    change(adapter);
    const AdapterModules modules(adapter_for(config, adapter));
    return plan_parameters(config, layer, {.tp = 2, .etp = 2, .adapter = &modules});
  };
  const auto nothing = [](AdapterConfig&) {};
  const ShardPlace place{{{{2, 1}, {2, 1}, {1, 0}}}};
  std::map<std::string, std::vector<int64_t>> shapes;
  std::vector<std::string> partial;
  for (const ParameterPlan& plan : plans("all-linear", nothing)) {
    if (!plan.adapter || plan.spec.name.find("experts") == std::string::npos) continue;
    EXPECT_TRUE(plan.expert && !plan.frozen);
    const std::string name = plan.spec.name.substr(plan.spec.name.find("experts."));
    shapes[name] = local_shape(plan.spec, place);
    if (plan.partial_over_tp) partial.push_back(name);
  }
  EXPECT_THAT(shapes, ElementsAre(std::pair("experts.down_proj.lora_A.weight", std::vector<int64_t>{3, 4, 3}),
                                  std::pair("experts.gate_up_proj.lora_A.weight", std::vector<int64_t>{3, 8, 16}),
                                  std::pair("experts.{}.down_proj.lora_B.weight", std::vector<int64_t>{3, 16, 4}),
                                  std::pair("experts.{}.gate_proj.lora_B.weight", std::vector<int64_t>{3, 3, 4}),
                                  std::pair("experts.{}.up_proj.lora_B.weight", std::vector<int64_t>{3, 3, 4})));
  EXPECT_THAT(partial, ElementsAre("experts.gate_up_proj.lora_A.weight", "experts.{}.down_proj.lora_B.weight"));

  EXPECT_THAT(refusal([&] { plans("experts.1.up_proj", nothing); }),
              HasSubstr("another pair for model.layers.1.mlp.experts.0.up_proj than for model.layers.1.mlp.experts.1"));
  EXPECT_THAT(refusal([&] { plans("up_proj", [](AdapterConfig& a) { a.rank_pattern = {{"2.up_proj", 5}}; }); }),
              HasSubstr("with the same rank and alpha"));
  EXPECT_EQ(refusal([&] { plans("up_proj", [](AdapterConfig& a) { a.lora_dropout = 0.1; }); }), "accepted");
  EXPECT_EQ(refusal([&] { plans("gate", [](AdapterConfig& a) { a.use_dora = true; }); }), "accepted");
  EXPECT_THAT(refusal([&] { plans("up_proj", [](AdapterConfig& a) { a.use_dora = true; }); }),
              HasSubstr("use_dora for experts (model.layers.1.mlp.experts.{}.up_proj) is not supported"));
  EXPECT_THAT(refusal([&] { plans("up_proj", [](AdapterConfig& a) { a.init_lora_weights = "olora"; }); }),
              HasSubstr("init_lora_weights olora for experts"));
}

TEST(ParameterPlan, ATiedEmbeddingIsUsedTwiceOrShared) {
  const ModelConfig tied = small("qwen2", R"(, "tie_word_embeddings": true)");
  const auto whole = plan_parameters(tied, kWhole, {});
  EXPECT_EQ(whole.front().uses, 2);
  EXPECT_FALSE(whole.front().shared_embedding);
  EXPECT_EQ(whole.back().spec.name, "model.norm.weight");
  const StageLayers last{.embedding = false, .first_layer = 1, .layers = 1, .mtp_layers = 0, .loss = true};
  const auto end = plan_parameters(tied, last, {});
  EXPECT_EQ(end.back().spec.name, "model.embed_tokens.weight");
  EXPECT_TRUE(end.back().shared_embedding);
  EXPECT_EQ(plan_parameters(tied, last, {.borrows_embedding = true}).back().spec.name, "model.norm.weight");
}

TEST(ParameterPlan, RefusesWhatDoesNotDivideWithNamesAndNumbers) {
  const auto plan = [](int64_t tp) { return refusal([tp] { plan_parameters(small("qwen2"), kWhole, {.tp = tp}); }); };
  EXPECT_EQ(plan(2), "accepted");
  EXPECT_EQ(plan(4), "accepted");  // two key heads, each split over two ranks
  const ModelConfig three = small("qwen2", R"(, "num_attention_heads": 12, "num_key_value_heads": 3, "head_dim": 8)");
  EXPECT_THAT(refusal([&] { plan_parameters(three, kWhole, {.tp = 4}); }),
              HasSubstr("num_key_value_heads 3 of 8 columns each cannot be split over tensor_model_parallel_size 4"));
  const ModelConfig odd = small("qwen3_moe", R"(, "moe_intermediate_size": 5)");
  EXPECT_THAT(refusal([&] { plan_parameters(odd, kWhole, {.etp = 2}); }),
              HasSubstr("the intermediate size of an expert, 5 is not divisible by expert_tensor_parallel_size 2"));
  EXPECT_THAT(refusal([&] { plan_parameters(odd, kWhole, {.ep = 3}); }),
              HasSubstr("num_experts 128 is not divisible by expert_model_parallel_size 3"));
  EXPECT_THAT(plan(3), HasSubstr("num_attention_heads 4 is not divisible by tensor_model_parallel_size 3"));
}

}  // namespace
}  // namespace concord
