// The positions of tokens and patches, compared with transformers.
#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base/config_error.h"
#include "core/models/vision/media_positions.h"
#include "core/models/vision/patch_layout.h"

namespace concord {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

json golden() {
  std::ifstream file(CONCORD_GOLDEN "/vision/vision.json");
  return json::parse(file);
}

MediaGrids grids_of(const json& grids) {
  MediaGrids result;
  for (const json& grid : grids) result.push_back({grid[0], grid[1], grid[2]});
  return result;
}

FrameTimes times_of(const std::string& model) {
  if (model == "qwen2_vl") return FrameTimes::counted;
  return model == "qwen2_5_vl" ? FrameTimes::seconds : FrameTimes::separate;
}

TEST(MediaPositions, AreThoseOfTransformers) {
  const json cases = golden().at("text");
  EXPECT_EQ(cases.size(), 7u);
  for (const json& each : cases) {
    SCOPED_TRACE(each.dump());
    const MediaTokens tokens{
        .image_token = 1, .video_token = 2, .times = times_of(each["model"]), .tokens_per_second = 3};
    const MediaList media{grids_of(each["images"]), grids_of(each["videos"]),
                          each["seconds"].get<std::vector<double>>()};
    MediaPositions positions(tokens, media);
    for (size_t row = 0; row < each["kinds"].size(); ++row) {
      const auto found = positions.next(each["kinds"][row].get<std::vector<int64_t>>());
      for (size_t axis = 0; axis < 3; ++axis) {
        EXPECT_EQ(found[axis], each["positions"][axis][row].get<std::vector<int64_t>>()) << row << ", axis " << axis;
      }
    }
    EXPECT_NO_THROW(positions.check_all_taken());
  }
}

TEST(MediaPositions, RefuseMediaThatDoNotFitTheTokens) {
  const MediaTokens tokens{.image_token = 1, .video_token = 2};
  const MediaList media{{{1, 4, 4}}, {}, {}};
  const auto positions = [&](std::vector<int64_t> ids) { return MediaPositions(tokens, media).next(ids); };
  EXPECT_THAT([&] { positions({0, 1, 1, 1, 0, 1}); }, ThrowsMessage<ConfigError>(HasSubstr("the first of only 3")));
  EXPECT_THAT([&] { positions({1, 1, 1, 1, 1}); }, ThrowsMessage<ConfigError>(HasSubstr("there are only 1")));
  EXPECT_THAT([&] { positions({0, 2}); }, ThrowsMessage<ConfigError>(HasSubstr("stands for video 1")));
  EXPECT_THAT([&] { MediaPositions(tokens, media).check_all_taken(); },
              ThrowsMessage<ConfigError>(HasSubstr("there are 1 images and 0 videos")));
}

TEST(FeatureRows, AreThoseOfImagesBeforeThoseOfVideos) {
  const MediaTokens tokens{.image_token = 1, .video_token = 2};
  const MediaList media{{{1, 2, 4}}, {{2, 2, 2}}, {}};
  const std::vector<int64_t> ids{2, 0, 2, 1, 1};
  const FeatureRows rows = feature_rows(ids, tokens, media);
  EXPECT_THAT(rows.tokens, ElementsAre(0, 2, 3, 4));
  EXPECT_THAT(rows.features, ElementsAre(2, 3, 0, 1));
  const std::vector<int64_t> fewer{2, 0, 2, 1};
  EXPECT_THAT([&] { feature_rows(fewer, tokens, media); }, ThrowsMessage<ConfigError>(HasSubstr("1 tokens stand for")));
}

TEST(PatchLayout, IsThatOfTransformers) {
  const json all = golden();
  const MediaGrids grids = grids_of(all["grids"]);
  const PatchPositions found = patch_positions(grids, 2);
  ASSERT_EQ(found.rows.size(), all["patches"]["positions"].size());
  for (size_t i = 0; i < found.rows.size(); ++i) {
    EXPECT_EQ(json({found.rows[i], found.columns[i]}), all["patches"]["positions"][i]) << i;
  }
  EXPECT_EQ(json(frame_boundaries(grids)), all["patches"]["boundaries"]);
  EXPECT_EQ(all["windows"].size(), 2u);
  for (const json& each : all["windows"]) {
    const WindowLayout layout = window_layout(grids_of(each["grids"]), 2, each["side"]);
    EXPECT_EQ(json(layout.order), each["order"]);
    EXPECT_EQ(json(layout.boundaries), each["boundaries"]);
  }
}

// transformers computes weights in float32 by the same operations, up to 1 - |distance| instead of 1 - distance.
TEST(PatchLayout, InterpolatesTablesAsTransformersDoes) {
  const json all = golden();
  EXPECT_EQ(all["taps"].size(), 2u);
  for (const json& each : all["taps"]) {
    const TableTaps taps = table_taps(grids_of(all["grids"]), 2, each["side"]);
    EXPECT_EQ(json(taps.rows), each["rows"]);
    const auto weights = each["weights"].get<std::vector<float>>();
    ASSERT_EQ(taps.weights.size(), weights.size());
    for (size_t i = 0; i < weights.size(); ++i) EXPECT_NEAR(taps.weights[i], weights[i], 1e-6F) << i;
  }
}

}  // namespace
}  // namespace concord
