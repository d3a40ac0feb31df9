#include "core/models/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <random>
#include <sstream>

#include "core/base/config_error.h"
#include "core/models/parameter_plan.h"

namespace concord {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const std::filesystem::path kModels = std::filesystem::path(CONCORD_GOLDEN) / "hf";

std::string read_text(const std::filesystem::path& path) {
  std::ifstream stream(path);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

// A small valid file with |more| keys; a key given twice counts as the last one.
std::string config(const std::string& more = "", const std::string& type = "qwen2") {
  const std::string separator = more.empty() ? "" : ", ";
  return R"({"model_type": ")" + type +
         R"(", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
              "num_attention_heads": 4, "num_key_value_heads": 2)" +
         separator + more + "}";
}

TEST(ModelConfigDtype, IsThatOfTheWeightsThatAreSaved) {
  EXPECT_EQ(with_dtype("{\n  \"dtype\": \"bfloat16\"\n}", "bfloat16"), "{\n  \"dtype\": \"bfloat16\"\n}");
  EXPECT_EQ(with_dtype(R"({"b": 1e-06, "dtype": "bfloat16", "a": 10000.0})", "float32"),
            "{\n  \"b\": 1e-06,\n  \"dtype\": \"float32\",\n  \"a\": 10000.0\n}\n");
  EXPECT_EQ(with_dtype(R"({"torch_dtype": "float32"})", "float16"), "{\n  \"torch_dtype\": \"float16\"\n}\n");
  EXPECT_EQ(with_dtype(R"({})", "float16"), "{\n  \"torch_dtype\": \"float16\"\n}\n");
  EXPECT_EQ(with_dtype(R"({"dtype": "a", "text_config": {"dtype": "b"}, "quantization_config": {"fmt": "q"}})", "c"),
            "{\n  \"dtype\": \"c\",\n  \"text_config\": {\n    \"dtype\": \"c\"\n  }\n}\n");
  EXPECT_EQ(with_dtype("no JSON", "float16"), "no JSON");
}

ModelConfig parse(const std::string& text) { return parse_model_config(text, "x/config.json"); }

std::string refusal(const std::string& text) {
  try {
    parse(text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

constexpr const char* kAllModels[] = {"qwen2-tiny",   "qwen2-tied",     "llama-tiny",     "qwen3-tiny",
                                      "mistral-tiny", "qwen2-moe-tiny", "qwen3-moe-tiny", "mixtral-tiny"};

void expect_same(const ModelConfig& a, const ModelConfig& b) {
  EXPECT_EQ(a.model_type, b.model_type);
  EXPECT_EQ(a.vocab_size, b.vocab_size);
  EXPECT_EQ(a.num_key_value_heads, b.num_key_value_heads);
  EXPECT_EQ(a.head_dim, b.head_dim);
  EXPECT_EQ(a.windows, b.windows);
  EXPECT_EQ(a.tie_word_embeddings, b.tie_word_embeddings);
  EXPECT_EQ(a.rms_norm_eps, b.rms_norm_eps);
  EXPECT_EQ(a.dtype, b.dtype);
  EXPECT_EQ(a.experts.num_experts, b.experts.num_experts);
  EXPECT_EQ(a.experts.sparse, b.experts.sparse);
  EXPECT_EQ(a.rope.rope_type, b.rope.rope_type);
  EXPECT_EQ(a.rope.rope_theta, b.rope.rope_theta);
  EXPECT_EQ(a.rope.factor, b.rope.factor);
  EXPECT_EQ(a.rope.low_freq_factor, b.rope.low_freq_factor);
  EXPECT_EQ(a.rope.high_freq_factor, b.rope.high_freq_factor);
  EXPECT_EQ(a.rope.original_max_position_embeddings, b.rope.original_max_position_embeddings);
}

TEST(ModelConfig, BothSpellingsOfAFileAreTheSameModel) {
  for (const char* model : kAllModels) {
    SCOPED_TRACE(model);
    expect_same(read_model_config(kModels / model), read_model_config(kModels / model / "config_v4.json"));
  }
}

TEST(ModelConfig, EachFamilyHasItsOwnTraits) {
  const ModelConfig qwen2 = read_model_config(kModels / "qwen2-tiny");
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.output_bias && !qwen2.qk_norm && !qwen2.tie_word_embeddings);
  EXPECT_EQ(qwen2.head_dim, 16);
  EXPECT_THAT(qwen2.windows, Each(0));
  const ModelConfig qwen3 = read_model_config(kModels / "qwen3-tiny");
  EXPECT_TRUE(!qwen3.qkv_bias && qwen3.qk_norm && qwen3.tie_word_embeddings);
  EXPECT_EQ(qwen3.head_dim, 32);
  const ModelConfig llama = read_model_config(kModels / "llama-tiny");
  EXPECT_TRUE(!llama.qkv_bias && !llama.mlp_bias);
  EXPECT_EQ(llama.rope.rope_type, RopeType::llama3);
  EXPECT_EQ(llama.rope.original_max_position_embeddings, 64);
  EXPECT_THAT(read_model_config(kModels / "mistral-tiny").windows, ElementsAre(8, 8));
  const ExpertConfig qwen2_moe = read_model_config(kModels / "qwen2-moe-tiny").experts;
  EXPECT_EQ(qwen2_moe.num_experts, 4);
  EXPECT_EQ(qwen2_moe.shared_intermediate_size, 40);
  EXPECT_TRUE(qwen2_moe.shared_gate && !qwen2_moe.norm_topk_prob);
  const ExpertConfig mixtral = read_model_config(kModels / "mixtral-tiny").experts;
  EXPECT_EQ(mixtral.intermediate_size, 40);
  EXPECT_EQ(mixtral.router_aux_loss_coef, 0.05);
  EXPECT_TRUE(mixtral.norm_topk_prob && mixtral.shared_intermediate_size == 0);
}

// transformers' counts of these files: 320*64*2 + 4*(...) + 64 and so on, taken from the weights on disk.
TEST(ModelConfig, CountsTheParametersThatAreInTheFiles) {
  const auto bytes = [](const char* model) {
    std::ifstream stream(kModels / model / "model.safetensors", std::ios::binary);
    uint64_t header = 0;
    stream.read(reinterpret_cast<char*>(&header), 8);
    return std::filesystem::file_size(kModels / model / "model.safetensors") - 8 - header;
  };
  for (const char* model : kAllModels) {
    EXPECT_EQ(static_cast<uint64_t>(parameter_count(read_model_config(kModels / model))), bytes(model) / 4) << model;
  }
}

TEST(ModelConfig, KeysThatAreNotThereHaveTheValuesOfTransformers) {
  const ModelConfig model = parse(config());
  EXPECT_EQ(model.head_dim, 16);
  EXPECT_EQ(model.rope.rope_theta, 10000);
  EXPECT_EQ(model.rms_norm_eps, 1e-6);
  EXPECT_EQ(model.dtype, "float32");
  EXPECT_EQ(parse(config("", "qwen3")).head_dim, 128);
  EXPECT_THAT(parse(config("", "mistral")).windows, Each(4096));
  EXPECT_THAT(parse(config(R"("sliding_window": null)", "mistral")).windows, Each(0));
  EXPECT_EQ(parse(config(R"("num_key_value_heads": null)", "llama")).num_key_value_heads, 4);
  EXPECT_EQ(parse(config("", "mixtral")).rope.rope_theta, 1e6);
  EXPECT_EQ(parse(config("", "mixtral")).rms_norm_eps, 1e-5);
  EXPECT_EQ(parse(config("", "mixtral")).experts.num_experts, 8);
  EXPECT_EQ(parse(config("", "qwen3_moe")).experts.num_experts_per_tok, 8);
  EXPECT_EQ(parse(config("", "qwen2_moe")).experts.intermediate_size, 1408);
}

TEST(ModelConfig, Glm4MoeHasGroupsOfExpertsAndDenseLayersBeforeThem) {
  const ModelConfig plain = parse(config("", "glm4_moe"));
  EXPECT_EQ(plain.experts.num_experts, 128);
  EXPECT_EQ(plain.experts.sparse, (std::vector{false, true, true}));
  EXPECT_EQ(plain.experts.shared_intermediate_size, 1408);
  EXPECT_EQ(plain.rope.partial_rotary_factor, 0.5);
  EXPECT_EQ(plain.num_nextn_predict_layers, 1);
  EXPECT_EQ(parse(config(R"("num_nextn_predict_layers": 0)", "glm4_moe")).num_nextn_predict_layers, 0);
  const ModelConfig grouped = parse(config(
      R"("n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 4, "first_k_dense_replace": 0)",
      "glm4_moe"));
  EXPECT_EQ(grouped.experts.n_group, 4);
  EXPECT_EQ(grouped.experts.topk_group, 2);
  EXPECT_EQ(grouped.experts.layers(), 3);
  for (const char* bad : {R"("n_group": 3)", R"("n_group": 128)", R"("topk_group": 2)",
                          R"("n_group": 64, "topk_group": 2, "num_experts_per_tok": 8)"}) {
    EXPECT_THAT(refusal(config(bad, "glm4_moe")), HasSubstr("n_group must divide them")) << bad;
  }
}

// The files of 4B name only what is not transformers' default.
TEST(ModelConfig, OfAModelWithImagesTheTextPartIsATextModel) {
  const ModelConfig model = parse(R"({"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
      "eos_token_id": [1, 106], "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 1152},
      "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
                      "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                      "sliding_window": 1024}})");
  EXPECT_EQ(model.architecture, "Gemma3ForCausalLM");
  EXPECT_EQ(model.dtype, "bfloat16");
  EXPECT_EQ(parameter_count(model), 3'880'263'168);  // as transformers 5.23 counts those of its language model
  EXPECT_THAT(model.unused_tensors, ::testing::Contains("multi_modal_projector."));
  EXPECT_THAT(model.whole_text, HasSubstr("vision_config"));
  expect_same(parse(model.text), model);
}

TEST(ModelConfig, ModelsWithImagesHaveTowers) {
  const ModelConfig three = parse(R"({"model_type": "qwen3_vl", "vision_config": {"out_hidden_size": 4096}})");
  EXPECT_EQ(three.vision.depth, 27);
  EXPECT_EQ(three.vision.head_dim(), 72);
  EXPECT_EQ(three.vision.pixels(), 1536);
  EXPECT_THAT(three.vision.deepstack, ElementsAre(8, 16, 24));
  EXPECT_THAT(three.rope.mrope_section, ElementsAre(24, 20, 20));
  EXPECT_EQ(three.rope.rope_theta, 500000);
  EXPECT_TRUE(three.rope.mrope_interleaved);
  EXPECT_THAT(three.unused_tensors, ::testing::Contains("model.visual."));
  const ModelConfig used = with_vision_tower(three);
  EXPECT_TRUE(used.vision.in_use);
  EXPECT_THAT(used.unused_tensors, ::testing::Not(::testing::Contains("model.visual.")));
  // As on the hub, with the keys of the text model at the root.
  const ModelConfig flat = parse(R"({"model_type": "qwen2_5_vl", "hidden_size": 2048, "num_attention_heads": 16,
      "num_hidden_layers": 36, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "image_token_id": 7,
      "vision_config": {"out_hidden_size": 2048, "hidden_size": 1280, "tokens_per_second": 2}})");
  EXPECT_EQ(flat.hidden_size, 2048);
  EXPECT_EQ(flat.rope.rope_type, RopeType::plain);
  EXPECT_EQ(flat.vision.tokens.tokens_per_second, 2);
  EXPECT_EQ(flat.vision.tokens.image_token, 7);
  EXPECT_EQ(flat.vision.window_side(), 4);
  EXPECT_EQ(
      parse(R"({"model_type": "qwen2_vl", "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4,
      "vision_config": {}})")
          .vision.intermediate_size,
      5120);
  EXPECT_EQ(parse(R"({"model_type": "qwen3_vl"})").vision.depth, 0);
  const auto said = [](const std::string& vision) {
    return refusal(R"({"model_type": "qwen3_vl", "vision_config": )" + vision + "}");
  };
  EXPECT_THAT(said("{}"), HasSubstr("out_hidden_size is not given; it must be 4096"));
  EXPECT_THAT(said(R"({"depth": 24})"), HasSubstr("below depth 24"));
  EXPECT_THAT(said(R"({"num_heads": 7})"), HasSubstr("must be a multiple of 4 times num_heads 7"));
  EXPECT_THAT(said(R"({"num_position_embeddings": 2303})"), HasSubstr("must be a square"));
}

TEST(ModelConfig, Qwen3NextHasLayersWithLinearAttention) {
  const ModelConfig model = parse(config(R"("full_attention_interval": 2)", "qwen3_next"));
  EXPECT_THAT(model.delta.layers, ElementsAre(true, false, true));
  EXPECT_EQ(model.delta.shared_by(), 2);
  EXPECT_EQ(model.rope.partial_rotary_factor, 0.25);
  EXPECT_TRUE(model.experts.norm_topk_prob);
  EXPECT_EQ(parameter_count(model), 153'835'520);  // as transformers 5.23 counts
  const std::string types = R"("layer_types": ["full_attention", "full_attention", "linear_attention"])";
  EXPECT_THAT(parse(config(types, "qwen3_next")).delta.layers, ElementsAre(false, false, true));
}

TEST(ModelConfig, DeepseekV3HasLatents) {
  const std::string heads = R"("num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 20, "qk_nope_head_dim": 10,
      "qk_rope_head_dim": 6, "v_head_dim": 14, "n_routed_experts": 16, "moe_intermediate_size": 12)";
  const ModelConfig model = parse(config(heads + R"(, "first_k_dense_replace": 1)", "deepseek_v3"));
  EXPECT_EQ(model.head_dim, 16);
  EXPECT_EQ(model.rope.head_dim, 6);
  EXPECT_EQ(model.value_dim(), 14);
  EXPECT_DOUBLE_EQ(model.attention_multiplier, 0.25);
  EXPECT_TRUE(model.interleaved_rope);
  EXPECT_EQ(model.experts.n_group, 8);
  EXPECT_EQ(model.experts.routed_scaling_factor, 2.5);
  EXPECT_EQ(model.num_nextn_predict_layers, 1);
  EXPECT_EQ(parameter_count(model), 142916);  // as transformers 5.23 counts, which has the biases of experts as buffers
  EXPECT_EQ(
      parameter_count(parse(config(
          heads + R"(, "first_k_dense_replace": 1, "q_lora_rank": null, "attention_bias": true)", "deepseek_v3"))),
      146186);
  const std::string yarn = R"(, "rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1, "mscale_all_dim": 0.5})";
  const double scale = 0.05 * std::log(40) + 1;
  EXPECT_DOUBLE_EQ(parse(config(heads + yarn, "deepseek_v3")).attention_multiplier, 0.25 * scale * scale);
  const ModelConfig plain = parse(config(R"("num_key_value_heads": 4, "q_lora_rank": null)", "deepseek_v3"));
  EXPECT_EQ(plain.latent.q_lora_rank, 0);
  EXPECT_EQ(plain.latent.kv_lora_rank, 512);
  EXPECT_EQ(parse(config(R"("num_key_value_heads": 4)", "deepseek_v3")).latent.q_lora_rank, 1536);
}

// As transformers 5.23 counts, without the biases of experts.
TEST(ModelConfig, DefaultsOfAFamilyAreThoseOfTransformers) {
  const auto count = [](const char* type, const std::string& more = "") {
    return parameter_count(parse(config(more, type)));
  };
  EXPECT_EQ(count("olmo3"), 105'696);
  EXPECT_EQ(count("ernie4_5", R"("use_bias": true)"), 361'088);
  EXPECT_EQ(count("ernie4_5_moe"), 38'998'720);
  EXPECT_EQ(count("hunyuan_v1_dense", R"("attention_bias": true)"), 106'080);
  EXPECT_EQ(count("ministral3"), 363'456);
  EXPECT_EQ(count("glm4_moe_lite", R"("num_key_value_heads": 4)"), 43'948'736);
  EXPECT_EQ(count("minimax_m2", R"("num_local_experts": 4, "num_experts_per_tok": 2)"), 532'416);
  EXPECT_EQ(count("qwen3_5_text"), 3'325'440);
  EXPECT_EQ(count("qwen3_5_moe_text", R"("moe_intermediate_size": 96)"), 17'770'176);
}

TEST(ModelConfig, SpecialKeysOfNewFamiliesAreRead) {
  const ModelConfig olmo = parse(config(R"("rope_scaling": {"rope_type": "yarn", "factor": 8})", "olmo3"));
  EXPECT_THAT(olmo.windows, ElementsAre(4096, 4096, 4096));
  EXPECT_EQ(olmo.rope.rope_type, RopeType::yarn);
  EXPECT_EQ(olmo.window_rope->rope_type, RopeType::plain);
  EXPECT_EQ(olmo.window_rope->rope_theta, 5e5);
  EXPECT_EQ(parse(config("", "ministral3")).query_scaling_beta, 0.1);
  EXPECT_EQ(parse(config("", "ministral3")).rope.original_max_position_embeddings, 16384);
  EXPECT_EQ(parse(config(R"("rotary_dim": 64)", "minimax_m2")).rope.partial_rotary_factor, 0.5);
  const ModelConfig dynamic =
      parse(config(R"("rope_scaling": {"type": "dynamic", "factor": 1, "alpha": 1000})", "hunyuan_v1_dense"));
  EXPECT_EQ(dynamic.rope.rope_type, RopeType::plain);
  EXPECT_DOUBLE_EQ(dynamic.rope.rope_theta, 10000 * std::pow(1000, 16.0 / 14));
  const ModelConfig ernie =
      parse(config(R"("moe_layer_start_index": 1, "moe_layer_end_index": 1, "moe_k": 2)", "ernie4_5_moe"));
  EXPECT_THAT(ernie.experts.sparse, ElementsAre(false, true, false));
  EXPECT_EQ(ernie.experts.num_experts_per_tok, 2);
  const ModelConfig glm =
      parse(config(R"("num_key_value_heads": 4, "mlp_layer_types": ["sparse", "dense", "sparse"])", "glm4_moe_lite"));
  EXPECT_THAT(glm.experts.sparse, ElementsAre(true, false, true));
  const std::string kimi = R"("num_key_value_heads": 4, "n_group": 1, "topk_group": 1, "num_nextn_predict_layers": 0)";
  EXPECT_EQ(parameter_count(parse(config(kimi, "kimi_k2"))), parameter_count(parse(config(kimi, "deepseek_v3"))));
}

TEST(ModelConfig, LayersForFurtherTokensAreThoseThatTheModelHas) {
  const ModelConfig model = parse(config(R"("num_nextn_predict_layers": 2)", "glm4_moe"));
  EXPECT_EQ(model.mtp_layers, 0);
  const ModelConfig with = with_mtp(model, 2);
  EXPECT_EQ(with.mtp_layers, 2);
  EXPECT_TRUE(with.experts.has_layer(4) && with.rotates(4));
  EXPECT_EQ(with.window_of(4), 0);
  EXPECT_THAT([&] { with_mtp(model, 3); },
              ThrowsMessage<ConfigError>(HasSubstr("mtp_num_layers is 3; this glm4_moe model has 2 MTP layers")));
  EXPECT_THAT([&] { with_mtp(parse(config()), 1); }, ThrowsMessage<ConfigError>(HasSubstr("has 0 MTP layers")));
}

TEST(ModelConfig, WeightsInBlocksOfEightBitFloatsAreTheOnlyQuantisedOnes) {
  const auto with = [](const std::string& more) { return config(R"("quantization_config": {)" + more + "}"); };
  EXPECT_THAT(parse(with(R"("quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 64])")).weight_block_size,
              ElementsAre(128, 64));
  EXPECT_THAT(parse(config()).weight_block_size, ElementsAre());
  EXPECT_THAT(refusal(with(R"("quant_method": "awq")")), HasSubstr("quant_method must be mxfp4, or fp8"));
  EXPECT_THAT(refusal(with(R"("quant_method": "fp8")")), HasSubstr("and a weight_block_size"));
  EXPECT_THAT(refusal(with(R"("quant_method": "fp8", "fmt": "e5m2", "weight_block_size": [1, 1])")), HasSubstr("e4m3"));
  EXPECT_THAT(refusal(with(R"("quant_method": "fp8", "weight_block_size": [128])")),
              HasSubstr("must have two numbers"));
  EXPECT_THAT(refusal(with(R"("quant_method": "fp8", "weight_block_size": [128, 0])")), HasSubstr("integers from 1"));
}

TEST(ModelConfig, DenseFamiliesDifferFromLlamaByTheirOwnKeys) {
  const ModelConfig granite = parse(config(R"("logits_scaling": 8, "residual_multiplier": 0.22)", "granite"));
  EXPECT_EQ(granite.logits_scaling, 8);
  EXPECT_EQ(granite.residual_multiplier, 0.22);
  EXPECT_EQ(granite.attention_multiplier, 1);  // not 1 / sqrt(head_dim)
  EXPECT_EQ(granite.embedding_multiplier, 1);
  const std::string interval = R"("no_rope_layer_interval": 2)";
  const ModelConfig smollm3 = parse(config(interval, "smollm3"));
  EXPECT_THAT(smollm3.rotated, ElementsAre(true, false, true));
  EXPECT_TRUE(smollm3.tie_word_embeddings);
  EXPECT_THAT(parse(config(R"("no_rope_layers": [0, 1, 1, 1])", "smollm3")).rotated, ElementsAre(false, true, true));
  EXPECT_THAT(parse(config(interval + R"(, "use_sliding_window": true, "sliding_window": 5)", "smollm3")).windows,
              ElementsAre(0, 5, 0));
  const ModelConfig seed = parse(config(R"("attention_dropout": 0, "residual_dropout": 0)", "seed_oss"));
  EXPECT_TRUE(seed.qkv_bias && !seed.output_bias);
  EXPECT_EQ(seed.attention_dropout, 0);
  EXPECT_EQ(parse(config(R"("residual_dropout": 0)", "seed_oss")).attention_dropout, 0.1);
  EXPECT_EQ(parse(config(R"("attention_dropout": 0.25)")).attention_dropout, 0.25);
  const ModelConfig olmo2 = parse(config("", "olmo2"));
  EXPECT_TRUE(olmo2.qk_norm_all_heads && olmo2.norms.before_mlp.empty() && !olmo2.norms.after_mlp.empty());
  EXPECT_EQ(olmo2.rms_norm_eps, 1e-5);
  const ModelConfig glm4 = parse(config("", "glm4"));
  EXPECT_TRUE(glm4.interleaved_rope && glm4.fused_gate_up && !glm4.fused_qkv && !glm4.output_bias);
  EXPECT_EQ(glm4.rope.partial_rotary_factor, 0.5);
  EXPECT_EQ(parse(config(R"("partial_rotary_factor": 1)", "glm4")).rope.partial_rotary_factor, 1);
  const ModelConfig phi3 = parse(config(R"("sliding_window": 7)", "phi3"));
  EXPECT_TRUE(phi3.fused_qkv && phi3.fused_gate_up && !phi3.qkv_bias);
  EXPECT_THAT(phi3.windows, Each(7));
}

TEST(ModelConfig, GemmasHaveCapsAndWindowsAndTheThirdTwoRopes) {
  const ModelConfig gemma2 = parse(config(R"("hidden_size": 144, "query_pre_attn_scalar": 64)", "gemma2"));
  EXPECT_EQ(gemma2.head_dim, 256);
  EXPECT_EQ(gemma2.embedding_multiplier, 12);
  EXPECT_EQ(gemma2.attention_multiplier, 0.125);
  EXPECT_EQ(gemma2.attn_logit_softcapping, 50);
  EXPECT_EQ(gemma2.final_logit_softcapping, 30);
  EXPECT_TRUE(gemma2.tie_word_embeddings && gemma2.norms_plus_one && !gemma2.window_rope && !gemma2.qk_norm);
  EXPECT_THAT(gemma2.windows, ElementsAre(4096, 0, 4096));
  EXPECT_EQ(parse(config(R"("final_logit_softcapping": null)", "gemma2")).final_logit_softcapping, 0);
  const ModelConfig old = parse(config(R"("sliding_window": 512, "sliding_window_pattern": 3, "rope_theta": 5e5,
      "rope_local_base_freq": 70, "rope_scaling": {"rope_type": "linear", "factor": 8}, "attn_logit_softcapping": 50)",
                                       "gemma3_text"));
  const ModelConfig now = parse(config(R"("sliding_window": 512, "rope_parameters": {
      "full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 5e5},
      "sliding_attention": {"rope_type": "default", "rope_theta": 70}},
      "layer_types": ["sliding_attention", "sliding_attention", "full_attention"])",
                                       "gemma3_text"));
  for (const ModelConfig& gemma3 : {old, now}) {
    EXPECT_THAT(gemma3.windows, ElementsAre(512, 512, 0));
    EXPECT_EQ(gemma3.rope.rope_type, RopeType::linear);
    EXPECT_EQ(gemma3.rope.factor, 8);
    EXPECT_EQ(gemma3.rope.rope_theta, 5e5);
    EXPECT_EQ(gemma3.window_rope.value().rope_type, RopeType::plain);
    EXPECT_EQ(gemma3.window_rope.value().rope_theta, 70);
    EXPECT_EQ(gemma3.attn_logit_softcapping, 0);
    EXPECT_EQ(gemma3.final_logit_softcapping, 0);
  }
  EXPECT_EQ(parse(config("", "gemma3_text")).rope.rope_theta, 1e6);
  EXPECT_EQ(parse(config("", "gemma3_text")).window_rope.value().rope_theta, 1e4);
}

TEST(ModelConfig, GptOssHasSinksAndBiasesAndYarnIfNothingIsSaid) {
  const ModelConfig plain = parse(config("", "gpt_oss"));
  EXPECT_TRUE(plain.sinks && plain.qkv_bias && plain.output_bias && plain.experts.softmax_after_topk);
  EXPECT_EQ(plain.experts.num_experts, 128);
  EXPECT_EQ(plain.experts.intermediate_size, 96);
  EXPECT_EQ(plain.activation, (GatedActivation{.kind = GatedActivation::Kind::clamped}));
  EXPECT_THAT(plain.windows, ElementsAre(128, 0, 128));
  EXPECT_EQ(plain.rope.rope_type, RopeType::yarn);
  EXPECT_EQ(plain.rope.factor, 32);
  EXPECT_EQ(plain.rope.rope_theta, 150000);
  EXPECT_EQ(parse(config(R"("rope_parameters": {"rope_type": "default"})", "gpt_oss")).rope.rope_type, RopeType::plain);
}

TEST(ModelConfig, BiasesOfLlamaAreSwitchedByTheirKeys) {
  const ModelConfig model = parse(config(R"("attention_bias": true, "mlp_bias": true)", "llama"));
  EXPECT_TRUE(model.qkv_bias && model.output_bias && model.mlp_bias);
}

TEST(ModelConfig, WindowsOfQwenBelongToTheLayersThatAreNamed) {
  const std::string on = R"("use_sliding_window": true, "sliding_window": 5)";
  EXPECT_THAT(parse(config(on + R"(, "max_window_layers": 1)")).windows, ElementsAre(0, 5, 5));
  EXPECT_THAT(parse(config(on)).windows, Each(0));  // max_window_layers is 28
  EXPECT_THAT(
      parse(config(on + R"(, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"])")).windows,
      ElementsAre(5, 0, 5));
  EXPECT_THAT(parse(config(R"("use_sliding_window": false, "sliding_window": 0, "max_window_layers": 0)")).windows,
              Each(0));
}

TEST(ModelConfig, LayersWithExpertsAreThoseOfTheStepThatAreNotNamed) {
  const auto sparse = [](const std::string& more) { return parse(config(more, "qwen2_moe")).experts.sparse; };
  EXPECT_THAT(sparse(""), Each(true));
  EXPECT_THAT(sparse(R"("decoder_sparse_step": 2)"), ElementsAre(false, true, false));
  EXPECT_THAT(sparse(R"("mlp_only_layers": [0, 2, 99])"), ElementsAre(false, true, false));
  EXPECT_EQ(parse(config("", "qwen2")).experts.layers(), 0);
}

TEST(ModelConfig, WindowsOfQwensWithExpertsFollowTheirOwnRules) {
  const std::string on = R"("use_sliding_window": true, "sliding_window": 5)";
  EXPECT_THAT(parse(config(on, "qwen3_moe")).windows, Each(5));
  EXPECT_THAT(parse(config(on, "qwen2_moe")).windows, ElementsAre(5, 0, 5));
  EXPECT_THAT(parse(config(on + R"(, "max_window_layers": 1)", "qwen2_moe")).windows, ElementsAre(5, 0, 0));
  EXPECT_THAT(parse(config("", "mixtral")).windows, Each(0));
}

TEST(ModelConfig, RopeScalingIsReadInBothPlaces) {
  const ModelConfig old = parse(config(R"("rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2})"));
  EXPECT_EQ(old.rope.rope_type, RopeType::linear);
  EXPECT_EQ(old.rope.rope_theta, 5e5);
  EXPECT_EQ(old.rope.factor, 2);
  const ModelConfig yarn = parse(config(
      R"("max_position_embeddings": 128, "rope_parameters": {"rope_type": "yarn", "factor": 4, "rope_theta": 7})"));
  EXPECT_EQ(yarn.rope.rope_type, RopeType::yarn);
  EXPECT_EQ(yarn.rope.rope_theta, 7);
  EXPECT_EQ(yarn.rope.original_max_position_embeddings, 128);
}

struct BadValue {
  std::string text;
  std::vector<std::string> words;  // words of the error, besides the file
};

TEST(ModelConfig, WhatCannotBeMeantIsRefusedWithTheKeyTheValueAndWhatIsAllowed) {
  const std::vector<BadValue> cases{
      {"", {"not JSON"}},
      {config("") + std::string("\0garbage", 8), {"not JSON: byte", "is 0"}},
      {"[1, 2]", {"JSON object"}},
      {"{}", {"model_type is not given"}},
      {config(R"("no_rope_layers": [1])", "smollm3"), {"no_rope_layers", "has 1 entries", "num_hidden_layers"}},
      {config(R"("attention_dropout": 0)", "seed_oss"), {"residual_dropout must be 0", "0.1 if it is missing"}},
      {config(R"("rope_scaling": {"type": "yarn", "factor": 2})", "phi3"), {"longrope is not supported"}},
      {config(R"("resid_pdrop": 0.1)", "phi3"), {"resid_pdrop is 0.1", "must be 0"}},
      {config(R"("head_dim": 6)", "glm4"), {"heads have 6 elements", "partial_rotary_factor 0.5 leaves 3", "even"}},
      {config(R"("use_bias": true)", "ernie4_5_moe"), {"use_bias is true", "must be false"}},
      {config(R"("sliding_window": 5, "layer_scale": 0.5)", "olmo4"),
       {"model_type is \"olmo4\"", "the nearest is olmo2, which does not know layer_scale, sliding_window"}},
      {config(R"("num_local_experts": 8, "rotary_dim": 8, "router_jitter_noise": 0.0)", "unheard"),
       {"the nearest is minimax_m2"}},
      {config("", "gpt2"),
       {"model_type is \"gpt2\"", "must be one of deepseek_v3, ", ", qwen2, qwen2_5_vl_text, qwen2_moe, ",
        ", seed_oss, smollm3"}},
      {config(R"("layer_types": ["full_attention"])", "qwen3_next"), {"layer_types", "has 1 entries"}},
      {config(R"("layer_types": ["full_attention", "mamba", "full_attention"])", "qwen3_next"),
       {"names 'mamba'", "full_attention and linear_attention"}},
      {config(R"("linear_num_key_heads": 5)", "qwen3_next"), {"linear_num_value_heads 32 must be a multiple", "5"}},
      {config("", "deepseek_v2"), {"model_type is \"deepseek_v2\"", "the nearest is deepseek_v3"}},
      {config("", "deepseek_v3"), {"num_key_value_heads 2 must be num_attention_heads 4"}},
      {config(R"("num_key_value_heads": 4, "qk_rope_head_dim": 7)", "deepseek_v3"), {"qk_rope_head_dim is 7", "even"}},
      {config(R"("num_key_value_heads": 4, "v_head_dim": 16777216)", "deepseek_v3"), {"times the", "must be <="}},
      {config(
           R"("num_key_value_heads": 4, "kv_lora_rank": null, "rope_scaling": {"type": "yarn", "mscale_all_dim": 1})",
           "deepseek_v3"),
       {"mscale_all_dim", "needs a factor"}},
      {config(R"("hidden_activation": "gelu")", "gemma2"), {"hidden_activation is \"gelu\"", "gelu_pytorch_tanh"}},
      {config(R"("sliding_window": null)", "gemma2"), {"sliding_window is null", "layer 0 has sliding_attention"}},
      {config(R"("use_bidirectional_attention": true)", "gemma3_text"), {"use_bidirectional_attention is true"}},
      {config(R"("attn_logit_softcapping": 0)", "gemma2"), {"attn_logit_softcapping is 0", "> 0"}},
      {config(R"("swiglu_limit": -7)", "gpt_oss"), {"swiglu_limit is -7", "> 0"}},
      {config(R"("num_experts": 0)", "qwen3_moe"), {"num_experts is 0", "from 1 to"}},
      {config(R"("num_local_experts": 4, "num_experts_per_tok": 5)", "mixtral"),
       {"num_experts_per_tok 5", "at most num_local_experts 4"}},
      {config(R"("decoder_sparse_step": 0)", "qwen2_moe"), {"decoder_sparse_step is 0"}},
      {config(R"("mlp_only_layers": [0, -1])", "qwen2_moe"), {"mlp_only_layers", "list of integers from 0"}},
      {config(R"("mlp_only_layers": 3)", "qwen3_moe"), {"mlp_only_layers is 3", "list of integers"}},
      {config(R"("router_aux_loss_coef": -1)", "mixtral"), {"router_aux_loss_coef is -1"}},
      {config(R"("router_jitter_noise": 0.1)", "mixtral"), {"router_jitter_noise is 0.1", "must be 0"}},
      {config(R"("num_experts": 65536, "moe_intermediate_size": 16777216, "hidden_size": 131072)", "qwen3_moe"),
       {"parameters", "the limit"}},
      {config(R"("architectures": ["Qwen2ForTokenClassification"])"), {"Qwen2ForCausalLM", "architectures"}},
      {config(R"("architectures": ["Qwen2ForSequenceClassification"])"), {"one label", "to be a reward model"}},
      {config(R"("architectures": ["Qwen2ForSequenceClassification"], "id2label": {"0": "a", "1": "b"})"),
       {"one label"}},
      {config(R"("vocab_size": 0)"), {"vocab_size is 0", "from 1 to"}},
      {config(R"("vocab_size": 99999999999999999999)"), {"vocab_size", "integer"}},
      {config(R"("vocab_size": 18446744073709551615)"), {"vocab_size", "integer"}},
      {config(R"("vocab_size": 2147483648)"), {"vocab_size is 2147483648", "an integer from 1 to 2147483647"}},
      {config(R"("hidden_size": "64")"), {"hidden_size is \"64\"", "integer"}},
      {config(R"("hidden_size": 64.5)"), {"hidden_size is 64.5"}},
      {config(R"("hidden_size": null)"), {"hidden_size is null"}},
      {config(R"("num_hidden_layers": 70000)"), {"num_hidden_layers is 70000", "65536"}},
      {config(R"("num_attention_heads": 3)"), {"num_attention_heads 3", "num_key_value_heads 2"}},
      {config(R"("num_attention_heads": 6)"), {"hidden_size 64", "num_attention_heads 6"}},
      {config(R"("head_dim": 15)"), {"15", "even"}},
      {config(R"("head_dim": 16777216)"), {"num_attention_heads 4 times head_dim 16777216"}},
      {config(R"("vocab_size": 2147483647, "hidden_size": 16777216, "head_dim": 16)"), {"parameters", "the limit"}},
      {config(R"("hidden_act": "gelu")"), {"hidden_act is \"gelu\"", "silu"}},
      {config(R"("attention_dropout": 1)"), {"attention_dropout is 1", "must be < 1"}},
      {config(R"("rms_norm_eps": -1)"), {"rms_norm_eps is -1", "> 0"}},
      {config(R"("rms_norm_eps": 1e309, "x": 1)"), {"'rms_norm_eps' is 1e309; a number must be at most 1.79e308"}},
      {config(R"("tie_word_embeddings": 1)"), {"tie_word_embeddings is 1", "true or false"}},
      {config(R"("torch_dtype": "int8")"), {"torch_dtype is \"int8\"", "bfloat16"}},
      {config(R"("quantization_config": {})"), {"quantization_config"}},
      {config(R"("quantization_config": {"quant_method": "gptq"})", "gpt_oss"), {"gptq", "must be mxfp4, or fp8"}},
      {R"({"model_type": "gemma3"})", {"text_config is not given"}},
      {R"({"model_type": "gemma3", "architectures": ["X"], "text_config": {}})", {"Gemma3ForConditionalGeneration"}},
      {R"({"model_type": "gemma3", "text_config": {"hidden_size": 0}})", {"text_config", "hidden_size is 0"}},
      {config(R"("rope_scaling": {"type": "longrope", "factor": 2})"), {"rope_scaling.type", "longrope", "llama3"}},
      {config(R"("rope_scaling": {"rope_type": "linear"})"), {"rope_scaling.factor is not given"}},
      {config(R"("rope_scaling": {"factor": 2})"), {"rope_scaling.rope_type is not given"}},
      {config(R"("rope_scaling": 3)"), {"rope_scaling is 3", "object"}},
      {config(R"("rope_parameters": {"rope_theta": 0})"), {"rope_parameters.rope_theta is 0"}},
      {config(R"("partial_rotary_factor": 0.5)"), {"partial_rotary_factor is 0.5"}},
      {config(R"("layer_types": ["full_attention"])"), {"layer_types", "1 entries", "3"}},
      {config(R"("layer_types": ["a", "b", "c"])"), {"layer_types", "'a'", "sliding_attention"}},
      {config(R"("layer_types": ["\t\u001b[2J", "b", "c"])"), {"layer_types", R"('\t\x1b[2J')", "sliding_attention"}},
      {config(R"("sliding_window": 0)", "mistral"), {"sliding_window is 0"}},
      {config(R"("architectures": "Qwen2ForCausalLM")"), {"architectures", "list of strings"}},
  };
  for (const BadValue& bad : cases) {
    const std::string said = refusal(bad.text);
    EXPECT_THAT(said, HasSubstr("x/config.json: ")) << bad.text;
    for (const std::string& word : bad.words) EXPECT_THAT(said, HasSubstr(word)) << bad.text;
  }
}

TEST(ModelConfig, DeepNestingIsRefused) {
  const std::string open(100000, '[');
  EXPECT_THAT(refusal(config("\"x\": " + open)), HasSubstr("nested deeper than 32"));
  EXPECT_EQ(refusal(config("\"x\": " + std::string(20, '[') + std::string(20, ']'))), "accepted");
}

TEST(ModelConfig, AFileThatIsNotThereIsNamed) {
  try {
    read_model_config(kModels / "nothing");
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr((kModels / "nothing").string()));
  }
}

// Bytes of real files changed, cut and doubled at random: a config or ConfigError, nothing else, and a config that
// came through describes a model that can be counted.
TEST(ModelConfig, AnyTextEndsInAModelOrInAnError) {
  std::mt19937 random(7);
  const auto below = [&](size_t n) { return random() % n; };
  int accepted = 0;
  for (const char* model : {"qwen2-tiny", "llama-tiny", "qwen3-tiny", "mistral-tiny", "qwen2-moe-tiny"}) {
    const std::string whole = read_text(kModels / model / "config.json");
    for (int round = 0; round < 400; ++round) {
      std::string text = whole;
      for (size_t edits = 1 + below(3); edits > 0; --edits) {
        const size_t at = below(text.size());
        switch (below(4)) {
          case 0: text[at] = static_cast<char>(below(256)); break;
          case 1: text.erase(at, 1 + below(8)); break;
          case 2: text.insert(at, std::to_string(random())); break;
          default: text.insert(at, text.substr(at, below(30)));
        }
      }
      try {
        const ModelConfig parsed = parse(text);
        EXPECT_GT(parameter_count(parsed), 0);
        ++accepted;
      } catch (const ConfigError&) {
      }
    }
  }
  EXPECT_GT(accepted, 50);
}

// The classes of transformers 5.22, by MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES; it has none for two families.
TEST(ModelConfig, RewardModelsAreOfClassesThatTransformersHas) {
  const std::map<std::string, std::string> classes = {{"gemma3_text", "Gemma3TextForSequenceClassification"},
                                                      {"llama", "LlamaForSequenceClassification"},
                                                      {"qwen3_moe", "Qwen3MoeForSequenceClassification"},
                                                      {"olmo2", "Olmo2ForSequenceClassification"},
                                                      {"smollm3", "SmolLM3ForSequenceClassification"}};
  for (const auto& [type, name] : classes) {
    EXPECT_EQ(reward_model_config(parse(config("", type))).architecture, name);
  }
  for (const char* type : {"granite", "glm4_moe"}) {
    const ModelConfig model = parse(config("", type));
    EXPECT_THAT([&] { reward_model_config(model); },
                ThrowsMessage<ConfigError>(HasSubstr("transformers has no class for classifying sequences")));
  }
}

TEST(ModelConfig, ARewardModelHasOneNumberInsteadOfLogits) {
  const ModelConfig base = parse(config(R"("tie_word_embeddings": true, "eos_token_id": 7, "pad_token_id": null)"));
  const ModelConfig reward = reward_model_config(base);
  EXPECT_FALSE(base.is_reward_model);
  EXPECT_TRUE(reward.is_reward_model);
  EXPECT_EQ(reward.architecture, "Qwen2ForSequenceClassification");
  EXPECT_FALSE(reward.tie_word_embeddings);
  EXPECT_EQ(parameter_count(reward), parameter_count(base) + 64);
  EXPECT_THAT(reward.text, HasSubstr("\"pad_token_id\": 7"));
  const ModelConfig again = parse(reward.text);
  EXPECT_TRUE(again.is_reward_model);
  EXPECT_EQ(reward_model_config(again).text, reward.text);
  EXPECT_TRUE(parse(config(R"("architectures": ["Qwen2ForSequenceClassification"], "num_labels": 1)")).is_reward_model);
}

std::string module_config(const std::string& parameters, const std::string& more = "") {
  return R"({"model_type": "concord_module", "architectures": ["Net"], "vocab_size": 10, "num_hidden_layers": 3,
             "max_position_embeddings": 16, )" +
         more + R"("parameters": {)" + parameters + "}}";
}

TEST(ModuleConfig, ListsTheParametersOfEachPart) {
  const ModelConfig model = parse(module_config(R"("b": {"shape": [4, 6], "layer": 0, "split": 1},
      "a": {"shape": [5], "layer": 2, "frozen": true, "partial_over_tp": true}, "c": {"shape": [7], "layer": 1})"));
  EXPECT_EQ(model.architecture, "Net");
  EXPECT_EQ(parameter_count(model), 24 + 5 + 7);
  const auto names = [&](int64_t first, int64_t layers) {
    std::string all;
    for (const ParameterPlan& plan : plan_parameters(model, {.first_layer = first, .layers = layers}, {})) {
      all += plan.spec.name;
    }
    return all;
  };
  EXPECT_EQ(names(0, 3), "bca");
  EXPECT_EQ(names(0, 1), "b");
  EXPECT_EQ(names(1, 2), "ca");
  const std::vector<ParameterPlan> plans = plan_parameters(model, {.first_layer = 0, .layers = 3}, {});
  EXPECT_EQ(plans[0].spec.dims[1].cut, ShardAxis::tp);
  EXPECT_EQ(plans[0].spec.replicated_over, std::vector<GroupKind>{GroupKind::dp_cp});
  EXPECT_EQ(plans[2].spec.replicated_over, (std::vector<GroupKind>{GroupKind::tp, GroupKind::dp_cp}));
  EXPECT_TRUE(plans[2].frozen && plans[2].partial_over_tp);
  EXPECT_FALSE(plans[1].frozen || plans[1].partial_over_tp);
}

TEST(ModuleConfig, ErrorsNameTheParameter) {
  const std::pair<std::string, const char*> wrong[] = {
      {R"("a": {"shape": [], "layer": 0})", "a shape of 1 to 8 dimensions"},
      {R"("a": {"shape": [0], "layer": 0})", "parameters.a.shape"},
      {R"("a": {"shape": [1099511627776, 1099511627776], "layer": 0})", "the limit is"},
      {R"("a": {"shape": [2], "layer": 3})", "parameters.a.layer"},
      {R"("a": {"shape": [2], "layer": 0, "split": 1})", "parameters.a.split"},
      {R"("a": 5)", "parameters.a"},
      {"", "must name at least one"}};
  for (const auto& [parameters, message] : wrong) {
    EXPECT_THAT([&] { parse(module_config(parameters)); }, ThrowsMessage<ConfigError>(HasSubstr(message)))
        << parameters;
  }
}

}  // namespace
}  // namespace concord
