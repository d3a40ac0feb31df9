#include "core/schedule/layer_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base/config_error.h"

namespace concord {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int64_t> counts(const std::vector<StageLayers>& stages) {
  std::vector<int64_t> layers;
  for (const StageLayers& stage : stages) layers.push_back(stage.layers);
  return layers;
}

template <typename Function>
std::string refusal_by(Function function) {
  try {
    function();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

std::string layout_refusal(std::string_view layout, int64_t num_layers, int64_t pp, int64_t mtp_layers = 0) {
  return refusal_by([&] { parse_layer_layout(layout, num_layers, pp, mtp_layers); });
}

std::string deal_refusal(const LayerAssignment& deal) {
  return refusal_by([&] { assign_layers(deal); });
}

nlohmann::json golden() {
  std::ifstream file(std::string(CONCORD_GOLDEN) + "/layers/layers.json");
  return nlohmann::json::parse(file);
}

std::optional<int64_t> given(const nlohmann::json& value) {
  return value.is_null() ? std::nullopt : std::optional(value.get<int64_t>());
}

TEST(LayerLayout, EveryGoldenDealIsMegatrons) {
  int dealt = 0;
  const nlohmann::json all = golden();
  for (const nlohmann::json& entry : all["deals"]) {
    const LayerAssignment deal{.num_layers = entry["layers"],
                               .pp = entry["pp"],
                               .vpp = entry["vpp"],
                               .account_for_embedding_in_pipeline_split = entry["embedding"],
                               .account_for_loss_in_pipeline_split = entry["loss"],
                               .num_layers_in_first_pipeline_stage = given(entry["first"]),
                               .num_layers_in_last_pipeline_stage = given(entry["last"])};
    nlohmann::json stages;
    if (deal_refusal(deal) == "accepted") {
      for (const StageLayers& stage : assign_layers(deal)) stages.push_back({stage.first_layer, stage.layers});
      ++dealt;
    }
    EXPECT_EQ(stages, entry["stages"]) << entry;
  }
  EXPECT_GE(dealt, 150);
}

// Megatron parses layouts with several stages per rank, and rejects the chunks elsewhere.
TEST(LayerLayout, EveryGoldenLayoutIsMegatrons) {
  int read = 0;
  const nlohmann::json all = golden();
  for (const nlohmann::json& entry : all["layouts"]) {
    const std::string text = entry["text"];
    nlohmann::json stages;
    if (layout_refusal(text, entry["layers"], entry["pp"], entry["mtp"]) == "accepted") {
      for (const StageLayers& stage : parse_layer_layout(text, entry["layers"], entry["pp"], entry["mtp"])) {
        stages.push_back(
            {stage.embedding ? 1 : 0, stage.first_layer, stage.layers, stage.mtp_layers, stage.loss ? 1 : 0});
      }
      ++read;
    }
    if (entry["pp"] == 1 && entry["stages"].size() > 1) {
      EXPECT_EQ(stages, nullptr) << entry;
    } else {
      EXPECT_EQ(stages, entry["stages"]) << entry;
    }
  }
  EXPECT_GE(read, 15);
}

TEST(LayerLayout, LayersAreDealtEvenly) {
  EXPECT_EQ(to_string(assign_layers({.num_layers = 8, .pp = 4})), "E,t*2|t*2|t*2|t*2,L");
  EXPECT_EQ(to_string(assign_layers({.num_layers = 3, .pp = 1})), "E,t*3,L");
}

// Megatron's example: with 8 layers, 2 ranks and 2 chunks, rank 0 has layers 0, 1 and 4, 5.
TEST(LayerLayout, ChunksOfALoopTakeTurns) {
  const std::vector<StageLayers> stages = assign_layers({.num_layers = 8, .pp = 2, .vpp = 2});
  ASSERT_EQ(stages.size(), 4u);
  const std::vector<int> ranks = place_stages(Placement::loop, 2, 2);
  EXPECT_THAT(ranks, ElementsAre(0, 1, 0, 1));
  EXPECT_EQ(stages[0].first_layer, 0);
  EXPECT_EQ(stages[2].first_layer, 4);
  EXPECT_TRUE(stages[0].embedding);
  EXPECT_TRUE(stages[3].loss);
}

TEST(LayerLayout, EmbeddingAndLossMayCountAsLayers) {
  EXPECT_THAT(counts(assign_layers({.num_layers = 30,
                                    .pp = 4,
                                    .account_for_embedding_in_pipeline_split = true,
                                    .account_for_loss_in_pipeline_split = true})),
              ElementsAre(7, 8, 8, 7));
  EXPECT_THAT(counts(assign_layers({.num_layers = 15, .pp = 4, .vpp = 2, .account_for_loss_in_pipeline_split = true})),
              ElementsAre(2, 2, 2, 2, 2, 2, 2, 1));
  // In a v both are on the first rank: 3 layers there, 4 on the other.
  EXPECT_THAT(counts(assign_layers({.num_layers = 6,
                                    .pp = 2,
                                    .vpp = 2,
                                    .account_for_embedding_in_pipeline_split = true,
                                    .account_for_loss_in_pipeline_split = true,
                                    .placement = Placement::v})),
              ElementsAre(1, 2, 2, 1));
}

TEST(LayerLayout, TheEndsMayBeGiven) {
  EXPECT_THAT(counts(assign_layers({.num_layers = 20,
                                    .pp = 4,
                                    .num_layers_in_first_pipeline_stage = 3,
                                    .num_layers_in_last_pipeline_stage = 5})),
              ElementsAre(3, 6, 6, 5));
  EXPECT_THAT(counts(assign_layers({.num_layers = 22, .pp = 4, .num_layers_in_last_pipeline_stage = 4})),
              ElementsAre(6, 6, 6, 4));
  EXPECT_THAT(counts(assign_layers({.num_layers = 12, .pp = 2, .vpp = 2, .num_layers_in_first_pipeline_stage = 4})),
              ElementsAre(2, 4, 2, 4));
}

TEST(LayerLayout, LayersThatDoNotAddUpAreRefusedWithTheNumbers) {
  EXPECT_THAT(deal_refusal({.num_layers = 30, .pp = 4}),
              AllOf(HasSubstr("30 layers"), HasSubstr("size 4"), HasSubstr("28 and 32")));
  EXPECT_THAT(deal_refusal({.num_layers = 8, .pp = 2, .vpp = 3}),
              AllOf(HasSubstr("4 layers of rank 0"), HasSubstr("size 3")));
  EXPECT_THAT(deal_refusal({.num_layers = 8, .pp = 1, .vpp = 2}),
              AllOf(HasSubstr("size 2 requires"), HasSubstr("but it is 1")));
  EXPECT_THAT(deal_refusal({.num_layers = 0, .pp = 1}), HasSubstr("num_layers is 0"));
  EXPECT_THAT(deal_refusal({.num_layers = 20, .pp = 4, .num_layers_in_first_pipeline_stage = 3}),
              AllOf(HasSubstr("leave 17 for 3")));
  EXPECT_THAT(
      deal_refusal(
          {.num_layers = 20, .pp = 2, .num_layers_in_first_pipeline_stage = 3, .num_layers_in_last_pipeline_stage = 3}),
      HasSubstr("leave 14 for 0"));
  EXPECT_THAT(deal_refusal({.num_layers = 20,
                            .pp = 1,
                            .num_layers_in_first_pipeline_stage = 10,
                            .num_layers_in_last_pipeline_stage = 10}),
              HasSubstr("cannot be split evenly"));
  EXPECT_THAT(deal_refusal({.num_layers = 19,
                            .pp = 4,
                            .account_for_loss_in_pipeline_split = true,
                            .num_layers_in_first_pipeline_stage = 3}),
              HasSubstr("only one of the two"));
  EXPECT_THAT(
      deal_refusal(
          {.num_layers = 8, .pp = 2, .vpp = 2, .num_layers_in_first_pipeline_stage = 3, .placement = Placement::v}),
      HasSubstr("pipeline_model_parallel_layout"));
}

TEST(LayerLayout, ALayoutIsRead) {
  const std::vector<StageLayers> stages = parse_layer_layout("E,t*3|t*4,L", 7, 2);
  ASSERT_EQ(stages.size(), 2u);
  EXPECT_EQ(stages[0], (StageLayers{.embedding = true, .first_layer = 0, .layers = 3}));
  EXPECT_EQ(stages[1], (StageLayers{.first_layer = 3, .layers = 4, .loss = true}));
}

// Megatron's own examples of the syntax.
TEST(LayerLayout, RepetitionsAreMegatrons) {
  EXPECT_EQ(to_string(parse_layer_layout("Ettt|(tt|)*29,m|L", 61, 32, 1)).substr(0, 14), "E,t*3|t*2|t*2|");
  EXPECT_EQ(parse_layer_layout("Ettt|(tt|)*29,m|L", 61, 32, 1).size(), 32u);
  EXPECT_EQ(to_string(parse_layer_layout("E(tt|t|t)*2,tL", 9, 5)), "E,t*2|t|t*3|t|t*2,L");
  EXPECT_EQ(to_string(parse_layer_layout("E, (t*2|)*2 , L", 4, 3)), "E,t*2|t*2|L");
  EXPECT_EQ(to_string(parse_layer_layout("E|*3,tL", 1, 4)), "E|||t,L");
}

TEST(LayerLayout, WhatIsPrintedParsesBack) {
  for (const int64_t pp : {1, 2, 4, 8}) {
    for (const int64_t vpp : {1, 2, 3}) {
      if (pp == 1 && vpp > 1) continue;
      const std::vector<StageLayers> stages = assign_layers({.num_layers = 24 * pp, .pp = pp, .vpp = vpp});
      EXPECT_EQ(parse_layer_layout(to_string(stages), 24 * pp, pp), stages);
    }
  }
}

TEST(LayerLayout, ALayoutThatDoesNotAddUpIsRefusedWithTheNumbers) {
  EXPECT_THAT(layout_refusal("E,t*3|t*4,L", 8, 2),
              HasSubstr("'E,t*3|t*4,L': it has 7 transformer layers (t), but the model has 8"));
  EXPECT_THAT(layout_refusal("Et|t|tL", 3, 2), AllOf(HasSubstr("3 stages"), HasSubstr("size 2")));
  EXPECT_THAT(layout_refusal("Et|tL", 2, 1), AllOf(HasSubstr("its 2 stages"), HasSubstr("but it is 1")));
  EXPECT_THAT(layout_refusal("t|tL", 2, 2), HasSubstr("E must come first and exactly once; found 0 times"));
  EXPECT_THAT(layout_refusal("tE|tL", 2, 2), HasSubstr("E must come first"));
  EXPECT_THAT(layout_refusal("Et|tLL", 2, 2), HasSubstr("L must come last and exactly once; found 2 times"));
  EXPECT_THAT(layout_refusal("Et|tmL", 2, 2), HasSubstr("1 multi-token prediction layers (m), but the model has 0"));
  EXPECT_THAT(layout_refusal("Emt|tL", 2, 2, 1), HasSubstr("after the last t"));
  EXPECT_THAT(layout_refusal("Ett|m|mL|", 2, 2, 2), HasSubstr("one stage"));
}

TEST(LayerLayout, TextThatIsNoLayoutIsRefusedWithItsPlace) {
  EXPECT_THAT(layout_refusal("", 1, 1), HasSubstr("no layers"));
  EXPECT_THAT(layout_refusal("|", 1, 1), HasSubstr("no layers"));
  EXPECT_THAT(layout_refusal("Ex,L", 1, 1), HasSubstr("'x' at position 2"));
  EXPECT_THAT(layout_refusal("E(tt|L", 1, 1), HasSubstr("'(' at position 2 is never closed"));
  EXPECT_THAT(layout_refusal("E(tt)L", 1, 1), HasSubstr("needs *n"));
  EXPECT_THAT(layout_refusal("E((t)*2)*2L", 1, 1), HasSubstr("'(' at position 3"));
  EXPECT_THAT(layout_refusal("Et*L", 1, 1), HasSubstr("'*' at position 3 needs a number"));
  EXPECT_THAT(layout_refusal("Et*-1L", 1, 1), HasSubstr("needs a number"));
  EXPECT_THAT(layout_refusal("Et*2*2L", 1, 1), HasSubstr("'*' at position 5"));
  EXPECT_THAT(layout_refusal("Et*99999999999999999999L", 1, 1), HasSubstr("needs a number <="));
  EXPECT_THAT(layout_refusal("E(t*2000000)*2000000L", 1, 1), HasSubstr("longer than"));
}

}  // namespace
}  // namespace concord
