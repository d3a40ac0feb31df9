// Models that Megatron's arguments describe, and lists as its scripts write them.
#include "trainer/arguments/foreign/model_description.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "core/base/config_error.h"
#include "tests/temporary_folder.h"
#include "trainer/arguments/arguments.h"

namespace concord {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

ModelConfig described(const std::string& text) {
  return read_model_config(parse_command_line(words(text)).arguments.model.config);
}

std::string error(const std::string& text) {
  try {
    parse_command_line(words(text));
  } catch (const ConfigError& problem) {
    return problem.what();
  }
  return "";
}

constexpr const char* kLlama =
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --kv-channels 128 --max-position-embeddings 8192 --position-embedding-type rope "
    "--rotary-base 500000 --rotary-percent 1.0 --swiglu --normalization RMSNorm --init-method-std 0.0134 "
    "--apply-layernorm-1p --untie-embeddings-and-output-weights --disable-bias-linear --vocab-size 128256 ";
constexpr const char* kQwen3Moe =
    "--disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope --normalization "
    "RMSNorm "
    "--swiglu --num-layers 48 --hidden-size 2048 --ffn-hidden-size 6144 --num-attention-heads 32 "
    "--group-query-attention --num-query-groups 4 --kv-channels 128 --qk-layernorm --num-experts 128 "
    "--moe-ffn-hidden-size 768 --moe-router-topk 8 --moe-router-dtype fp32 --moe-aux-loss-coeff 1e-3 "
    "--moe-token-dispatcher-type alltoall --moe-router-load-balancing-type aux_loss --max-position-embeddings 40960 "
    "--padded-vocab-size 151936 --rotary-base 1000000 --norm-epsilon 1e-6";
constexpr const char* kDeepSeek =
    "--disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope --normalization "
    "RMSNorm "
    "--swiglu --num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 --kv-channels 128 "
    "--multi-latent-attention --kv-lora-rank 512 --v-head-dim 128 --q-lora-rank 1536 --qk-head-dim 128 --qk-layernorm "
    "--qk-pos-emb-head-dim 64 --num-experts 256 --moe-layer-freq [0]*3+[1]*58 --moe-ffn-hidden-size 2048 "
    "--moe-router-dtype fp32 --moe-router-score-function sigmoid --moe-router-enable-expert-bias --moe-router-topk 8 "
    "--moe-router-num-groups 8 --moe-router-group-topk 4 --moe-router-pre-softmax --moe-router-topk-scaling-factor 2.5 "
    "--moe-shared-expert-intermediate-size 2048 --max-position-embeddings 163840 --padded-vocab-size 129280 "
    "--rotary-base 10000 --rotary-scaling-factor 40 --mscale 1.0 --mscale-all-dim 1.0";

// Expected: the config.json of Meta-Llama-3-8B.
TEST(ModelDescription, AnOlderNameOfRopeIsRope) {
  std::string older = kLlama;
  const std::string name = "--position-embedding-type rope";
  older.replace(older.find(name), name.size(), "--use-rotary-position-embeddings --no-position-embedding");
  EXPECT_EQ(described(older).rope.rope_theta, 500000);
  const std::string yarn = kLlama + std::string(
                                        "--position-embedding-type yarn --rotary-scaling-factor 4 "
                                        "--yarn-original-max-position-embeddings 2048 --yarn-beta-fast 16");
  EXPECT_EQ(described(yarn).rope.original_max_position_embeddings, 2048);
  EXPECT_EQ(described(yarn).rope.beta_fast, 16);
}

TEST(ModelDescription, MakesALlama) {
  const ModelConfig model = described(kLlama);
  EXPECT_EQ(model.model_type, "llama");
  EXPECT_EQ(model.num_hidden_layers, 32);
  EXPECT_EQ(model.intermediate_size, 14336);
  EXPECT_EQ(model.num_key_value_heads, 8);
  EXPECT_EQ(model.head_dim, 128);
  EXPECT_EQ(model.rope.rope_theta, 500000);
  EXPECT_EQ(model.rope.rope_type, RopeType::plain);
  EXPECT_EQ(model.rms_norm_eps, 1e-5);
  EXPECT_EQ(model.vocab_size, 128256);
  EXPECT_FALSE(model.tie_word_embeddings || model.qkv_bias || model.mlp_bias);
  EXPECT_EQ(parameter_count(model), 8030261248) << "of the published model";
  const ModelConfig scaled = described(std::string(kLlama) + "--use-rope-scaling");
  EXPECT_EQ(scaled.rope.rope_type, RopeType::llama3);
  EXPECT_EQ(scaled.rope.factor, 8);
}

// Expected: config.json of Qwen3-30B-A3B.
TEST(ModelDescription, MakesAQwenWithExperts) {
  const ModelConfig model = described(kQwen3Moe);
  EXPECT_EQ(model.model_type, "qwen3_moe");
  EXPECT_EQ(model.experts.num_experts, 128);
  EXPECT_EQ(model.experts.num_experts_per_tok, 8);
  EXPECT_EQ(model.experts.intermediate_size, 768);
  EXPECT_TRUE(model.experts.norm_topk_prob) << "Megatron's softmax over the chosen ones";
  EXPECT_EQ(parameter_count(model), 30532122624) << "of the published model";
}

// Expected: config.json of DeepSeek-R1.
TEST(ModelDescription, MakesADeepSeek) {
  const ModelConfig model = described(kDeepSeek);
  EXPECT_EQ(model.model_type, "deepseek_v3");
  EXPECT_EQ(model.latent.q_lora_rank, 1536);
  EXPECT_EQ(model.head_dim, 192);
  EXPECT_EQ(model.experts.layers(), 58);
  EXPECT_EQ(model.experts.n_group, 8);
  EXPECT_EQ(model.experts.topk_group, 4);
  EXPECT_EQ(model.experts.shared_intermediate_size, 2048);
  EXPECT_EQ(model.rope.rope_type, RopeType::yarn);
  EXPECT_EQ(model.rope.factor, 40);
  EXPECT_EQ(parameter_count(model), 671026419200 - 58 * 256)
      << "of the published model, without MTP and the routers' biases";
}

TEST(ModelDescription, AgreesWithTheModelOrIsRefusedWithBothValues) {
  const tests::TemporaryFolder folder;
  const std::string path = folder.path() + "/config.json";
  std::ofstream(path) << parse_command_line(words(kQwen3Moe)).arguments.model.config;
  const std::string model = " --model-config " + path;
  EXPECT_EQ(error(kQwen3Moe + model), "");
  EXPECT_EQ(error("--swiglu --vocab-size 151643" + model), "") << "without padding";
  EXPECT_THAT(error("--moe-router-topk 4" + model),
              AllOf(HasSubstr("moe_router_topk is '4', but the model has '8'"), HasSubstr(path)));
  EXPECT_THAT(error("--num-layers 2 --rotary-base 10000 --vocab-size 32000" + model),
              AllOf(HasSubstr("num_layers is '2', but the model has '48'"), HasSubstr("rotary_base is '10000'"),
                    HasSubstr("vocab_size is '32000'")));
}

// GPT-3 has norms, positions and an activation that no family has: each of Megatron's defaults is named.
TEST(ModelDescription, NamesWhatNoFamilyHas) {
  const std::string text = error(
      "--num-layers 96 --hidden-size 12288 --num-attention-heads 96 --max-position-embeddings 2048 --vocab-size 50257");
  for (const char* name : {"normalization", "position_embedding_type", "swiglu", "disable_bias_linear"}) {
    EXPECT_THAT(text, HasSubstr(std::string("Megatron's default of ") + name));
  }
  EXPECT_THAT(error("--num-layers 2 --hidden-size 8"), HasSubstr("is missing"));
  EXPECT_THAT(error(std::string(kLlama) + "--hidden-size big"), HasSubstr("hidden_size is 'big'"));
}

TEST(MegatronLists, AreWordsAfterTheirName) {
  const auto read = [](const std::string& text) { return parse_command_line(words(text)).arguments; };
  EXPECT_THAT(read("--data-path 0.3 a 0.7 b --bf16").data.blend, ElementsAre("0.3", "a", "0.7", "b"));
  EXPECT_EQ(read("--data-path a").data.path, "a");
  EXPECT_EQ(read("--data-path 1.0 a").data.path, "a");
  EXPECT_THAT(read("--rampup-batch-size 4 4 100 --lr 1").steps.rampup_batch_size, ElementsAre("4", "4", "100"));
  EXPECT_EQ(read("--recompute-modules layernorm core_attn").model_options.recompute.modules.size(), 2u);
  EXPECT_THAT(read("--split '99,1,0'").data.split, ElementsAre("99", "1", "0")) << "quotes in an array of bash";
  EXPECT_THAT(error("--lr 1 2"), HasSubstr("unexpected '2'"));
}

TEST(Conversions, YieldToTheArgumentsOwnName) {
  const auto read = [](const std::string& text) { return parse_command_line(words(text)).arguments; };
  EXPECT_EQ(read("--gradient_checkpointing").model_options.recompute.granularity, RecomputeGranularity::full);
  EXPECT_EQ(read("--gradient_checkpointing --recompute_granularity selective").model_options.recompute.granularity,
            RecomputeGranularity::selective);
  const tests::TemporaryFolder folder;
  const std::string path = folder.path() + "/c.yaml";
  std::ofstream(path) << "recompute_granularity: selective\nload: out\nsave: out\n";
  const TrainingArguments a = read("--config " + path + " --gradient_checkpointing");
  EXPECT_EQ(a.model_options.recompute.granularity, RecomputeGranularity::full) << "the command line precedes a file";
  EXPECT_EQ(a.saving.resume_from, "latest") << "load is the folder of save";
}

}  // namespace
}  // namespace concord
