#include "core/models/adapters/adapter_config.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "core/base/config_error.h"

namespace concord {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<std::string> kModules = {"model.layers.0.self_attn.q_proj",  "model.layers.0.self_attn.k_proj",
                                           "model.layers.1.self_attn.q_proj",  "model.layers.1.mlp.down_proj",
                                           "model.layers.11.self_attn.q_proj", "lm_head"};

AdapterConfig with(const std::vector<std::string>& targets) {
  AdapterConfig config;
  set_targets(targets, &config);
  return config;
}

// Numbers of kModules that are targets.
std::vector<int> targets_of(const AdapterConfig& config) {
  const AdapterModules modules(config);
  std::vector<int> found;
  for (size_t i = 0; i < kModules.size(); ++i) {
    if (modules.find(kModules[i])) found.push_back(static_cast<int>(i));
  }
  return found;
}

template <class Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "nothing was refused";
}
std::string refused_file(const std::string& more) {
  return refusal([&] { parse_adapter_config(R"({"target_modules": ["q_proj"], )" + more + "}", "a.json"); });
}

// peft's rules: check_target_module_exists of tuners_utils.py.
TEST(AdapterConfig, TargetsAreNamesOrEndsOfNamesOrAPatternForAllOfIt) {
  EXPECT_THAT(targets_of(with({"q_proj"})), ElementsAre(0, 2, 4));
  EXPECT_THAT(targets_of(with({"proj"})), ElementsAre()) << "no part of a word";
  EXPECT_THAT(targets_of(with({"self_attn.k_proj", "lm_head"})), ElementsAre(1, 5));
  EXPECT_THAT(targets_of(with({"all-linear"})), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(targets_of(with({R"(model\.layers\.1\..*)"})), ElementsAre(2, 3)) << "the dot is behind the 1";
  EXPECT_THAT(targets_of(with({R"(layers\.1\..*)"})), ElementsAre()) << "matches all of the name or nothing";
  EXPECT_THAT(targets_of(with({R"(.*\.0\..*)", "down_proj"})), ElementsAre(0, 1, 3));
  AdapterConfig excluded = with({"all-linear"});
  excluded.exclude_modules = {"k_proj", "model.layers.1.self_attn.q_proj"};
  EXPECT_THAT(targets_of(excluded), ElementsAre(0, 3, 4));
}

TEST(AdapterConfig, RanksAndAlphasOfPatterns) {
  AdapterConfig config = with({"all-linear"});
  config.r = 4;
  config.lora_alpha = 8;
  config.rank_pattern = {{"layers.1.self_attn.q_proj", 16}, {"q_proj", 2}};
  config.alpha_pattern = {{"down_proj", 3}};
  const auto pair = [&](size_t i) { return *AdapterModules(config).find(kModules[i]); };
  EXPECT_EQ(pair(0).rank, 2);
  EXPECT_EQ(pair(0).scale, 4);
  EXPECT_EQ(pair(2).rank, 16) << "the first that matches";
  EXPECT_EQ(pair(3).scale, 0.75);
  config.use_rslora = true;
  EXPECT_EQ(pair(2).scale, 2);
}

TEST(AdapterConfig, ATargetThatTheModelDoesNotHaveIsRefusedWithThoseItHas) {
  EXPECT_THAT(with_targets(with({"all-linear"}), kModules).target_modules,
              ElementsAre("down_proj", "k_proj", "q_proj"));
  EXPECT_THAT(refusal([] { with_targets(with({"q_proj", "query"}), kModules); }),
              AllOf(HasSubstr("the target 'query'"), HasSubstr("down_proj, k_proj, lm_head, q_proj"),
                    HasSubstr("model.layers.0.self_attn.q_proj")));
  EXPECT_THAT(refusal([] { with_targets(with({"q_pro(j"}), kModules); }), HasSubstr("is not a regular expression"));
  EXPECT_THAT(refusal([] { with_targets(with({"q_p.*"}), kModules); }), HasSubstr("q_p.*"));
  EXPECT_THAT(refusal([] { with({"all-linear", "lm_head"}); }),
              HasSubstr("all-linear cannot be combined with other targets"));
}

TEST(AdapterConfig, ModulesThatAreTrainedWhole) {
  const std::vector<std::string> whole = {"model.embed_tokens", "model.layers.0.input_layernorm",
                                          "model.layers.1.mlp.down_proj", "lm_head"};
  AdapterConfig config = with({"q_proj"});
  config.modules_to_save = {"embed_tokens", "lm_head"};
  EXPECT_EQ(with_targets(config, kModules, whole).modules_to_save, config.modules_to_save);
  EXPECT_TRUE(AdapterModules(config).saves("model.embed_tokens"));
  EXPECT_FALSE(AdapterModules(config).saves("model.layers.0.input_layernorm"));
  const auto refused = [&](const std::vector<std::string>& targets, const std::string& saved) {
    AdapterConfig wrong = with(targets);
    wrong.modules_to_save = {saved};
    return refusal([&] { with_targets(wrong, kModules, whole); });
  };
  EXPECT_THAT(refused({"q_proj"}, "score"), AllOf(HasSubstr("'score'"), HasSubstr("embed_tokens, input_layernorm")));
  EXPECT_THAT(refused({"q_proj", "lm_head"}, "lm_head"), HasSubstr("is a target of the adapter too"));
  EXPECT_THAT(refused({"q_proj"}, "proj"), HasSubstr("can only have a pair"));
}

TEST(AdapterConfig, ThatPeftHasWrittenIsReadAndWrittenAgain) {
  const AdapterConfig golden = read_adapter_config(CONCORD_GOLDEN "/lora");
  EXPECT_EQ(golden.r, 4);
  EXPECT_EQ(golden.target_modules.size(), 7);
  EXPECT_EQ(golden.base_model, "hf/qwen2-tiny");
  EXPECT_EQ(parse_adapter_config(to_json(golden), "own"), golden);
  AdapterConfig other = with({".*q_proj", "lm_head"});
  other.rank_pattern = {{"b", 3}, {"a", 2}};
  other.alpha_pattern = {{"b", 0.5}};
  other.use_rslora = other.use_dora = true;
  other.modules_to_save = {"lm_head"};
  EXPECT_EQ(parse_adapter_config(to_json(other), "own"), other);
  other.use_dora = false;
  other.lora_dropout = 0.25;
  EXPECT_EQ(parse_adapter_config(to_json(other), "own"), other);
}

TEST(AdapterConfig, PairsThatBeginAsWeightsAreSavedWithTwiceTheRankAndTheSameScale) {
  for (const bool rslora : {false, true}) {
    AdapterConfig config = with({"q_proj", "down_proj"});
    config.use_rslora = rslora;
    config.rank_pattern = {{"q_proj", 3}};
    config.alpha_pattern = {{"down_proj", 5}};
    EXPECT_EQ(saved_form(config), config);
    config.init_lora_weights = "pissa_niter_4";
    const AdapterModules own(config), saved(saved_form(config));
    EXPECT_FALSE(saved.config().modifies_base_weights());
    for (const int i : {0, 3}) {
      EXPECT_EQ(saved.find(kModules[i])->rank, 2 * own.find(kModules[i])->rank);
      EXPECT_NEAR(saved.find(kModules[i])->scale, own.find(kModules[i])->scale, 1e-12);
    }
  }
}

TEST(AdapterConfig, BeginningsThatDoNotExistAreRefused) {
  const auto refused = [](const std::string& init, bool dora = false, double alpha = 16) {
    AdapterConfig config = with({"q_proj"});
    config.init_lora_weights = init;
    config.use_dora = dora;
    config.lora_alpha = alpha;
    return refusal([&] { AdapterModules{config}; });
  };
  for (const char* wrong : {"pisa", "pissa_niter_", "pissa_niter_0", "pissa_niter_4x", "false", ""}) {
    EXPECT_THAT(refused(wrong), HasSubstr("must be true, pissa, pissa_niter_N")) << wrong;
  }
  EXPECT_THAT(refused("olora", /*dora=*/true), HasSubstr("use_dora with init_lora_weights olora is not supported"));
  EXPECT_THAT(refused("pissa", false, -1), HasSubstr("needs a positive lora_alpha"));
}

TEST(AdapterConfig, WhatCannotBeComputedIsRefused) {
  EXPECT_THAT(refused_file(R"("peft_type": "IA3")"), AllOf(HasSubstr("a.json"), HasSubstr("IA3")));
  EXPECT_THAT(refused_file(R"("bias": "all")"), HasSubstr("bias is \"all\""));
  EXPECT_THAT(refused_file(R"("target_parameters": ["mlp.experts.gate_up_proj"])"),
              AllOf(HasSubstr("target_parameters is ["), HasSubstr("such as on the experts of GPT-OSS is not")));
  for (const char* init : {"pissa", "pissa_niter_16", "olora", "loftq"}) {
    EXPECT_THAT(refused_file(fmt::format(R"("init_lora_weights": "{}")", init)), HasSubstr("weight_conversion"));
  }
  EXPECT_EQ(parse_adapter_config(R"({"target_modules": ["q_proj"], "init_lora_weights": "gaussian"})", "a.json").r, 8);
  EXPECT_THAT(refused_file(R"("r": 0)"), HasSubstr("rank of the adapter is 0"));
  EXPECT_THAT(refused_file(R"("r": 1e9)"), HasSubstr("r is 1000000000.0; must be a whole number"));
  EXPECT_THAT(refused_file(R"("lora_alpha": "8")"), HasSubstr("must be a number"));
  EXPECT_THAT(refused_file(R"("rank_pattern": {"(": 4})"), HasSubstr("is not a regular expression"));
  EXPECT_THAT(refusal([] { parse_adapter_config("[]", "a.json"); }), HasSubstr("is not a JSON object"));
  EXPECT_THAT(refusal([] { parse_adapter_config("{}", "a.json"); }), HasSubstr("has no target_modules"));
}

}  // namespace
}  // namespace concord
