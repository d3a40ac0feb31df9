#include "trainer/data/media/media_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/safetensors/writer.h"
#include "trainer/data/build/build_media.h"
#include "trainer/data/loader.h"
#include "trainer/data/media/media_set.h"
#include "trainer/data/testing/folder.h"

namespace concord {
namespace {

using testing::config_error;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::read_file;
using testing::write_file;
using Ids = std::vector<int64_t>;

constexpr int64_t kImage = 9, kVideo = 8;  // the tokens

// Values are (x - mean) / 2: halves and wholes.
MediaFormat small_format() {
  return {.patch_size = 1,
          .temporal_patch_size = 2,
          .merge_size = 1,
          .image_token = kImage,
          .video_token = kVideo,
          .mean = {0, 1, 2},
          .std = {2, 2, 2}};
}

Medium image(int64_t rows, int64_t columns) { return {.grid = {1, rows, columns}}; }

SampleMedia media(const std::vector<Medium>& list, char first) {
  SampleMedia made{.media = list};
  int64_t count = 0;
  for (const Medium& each : list) count += each.grid.patches() * small_format().patch_bytes(each.is_video);
  for (int64_t i = 0; i < count; ++i) made.patches += static_cast<char>(first + i);
  return made;
}

TokensAndLabels tokens(const Ids& ids) { return {ids, ids}; }

// Pieces of samples with one image, none, and two images; and a video of two groups of frames before an image.
std::vector<std::string> write_pieces(const testing::Folder& folder) {
  MediaFileBuilder first(folder / "a.safetensors", small_format()), second(folder / "b.safetensors", small_format());
  first.add(tokens({kImage, kImage, 1, 2}), media({image(1, 2)}, 10));
  first.add(tokens({3, 4}), SampleMedia{});
  second.add(tokens({kImage, kImage, kImage, kImage, 5}), media({image(1, 1), image(3, 1)}, 40));
  const Medium video{.grid = {2, 1, 1}, .is_video = true, .seconds = 0.5};
  second.add(tokens({kVideo, kVideo, kImage, 6}), media({video, image(1, 1)}, 60));
  first.finish();
  second.finish();
  return {folder / "a", folder / "b"};
}

std::string write_set(const testing::Folder& folder, int64_t most_bytes = 1 << 20) {
  std::filesystem::create_directory(folder / "work");
  MediaJoin join(folder / "work", write_pieces(folder));
  join.run(most_bytes, 2);
  join.publish(folder / "set");
  return folder / "set";
}

TEST(MediaFile, JoinedPiecesHaveTheSamplesOfAll) {
  const testing::Folder folder;
  const MediaSet set(write_set(folder));
  ASSERT_EQ(set.samples(), 4);
  EXPECT_EQ(set.format(), small_format());
  EXPECT_EQ(set.shards().front().tokens(), 4 + 2 + 5 + 4);
  EXPECT_THAT(set.sample(0).ids, ElementsAre(kImage, kImage, 1, 2));
  EXPECT_THAT(set.sample(2).labels, ElementsAre(kImage, kImage, kImage, kImage, 5));
  EXPECT_THAT(set.media(0), ElementsAre(image(1, 2)));
  EXPECT_THAT(set.media(1), ElementsAre());
  EXPECT_THAT(set.media(2), ElementsAre(image(1, 1), image(3, 1)));
  EXPECT_EQ(set.view(1).image_patches.size(), 0U);
  ASSERT_EQ(set.view(2).image_patches.size(), 12U);
  EXPECT_EQ(set.view(2).image_patches[0], std::byte{40});
  ASSERT_EQ(set.view(3).video_patches.size(), 2U * 3 * 2);
  EXPECT_EQ(set.view(3).video_patches[0], std::byte{60});
  EXPECT_EQ(set.view(3).image_patches[0], std::byte{72});
  EXPECT_FALSE(std::filesystem::exists(folder / "a.safetensors"));  // pieces are removed
}

TEST(MediaFile, ASampleNeedsATokenForEachPatch) {
  const testing::Folder folder;
  MediaFileBuilder file(folder / "a.safetensors", small_format());
  EXPECT_THAT(config_error([&] { file.add(tokens({kImage, 1}), media({image(1, 2)}, 1)); }),
              HasSubstr("has 1 image tokens (id 9), but its images have 2 merged patches"));
}

TEST(MediaShards, ArePlannedByBytes) {
  using Plan = MediaShardPlan;
  EXPECT_EQ(plan_media_shards({{10, 10, 10}, {}, {10, 10}}, 25, 1),
            (Plan{{{0, 0, 2}}, {{0, 2, 3}, {2, 0, 1}}, {{2, 1, 2}}}));
  EXPECT_EQ(plan_media_shards({{10, 90, 10}}, 50, 1), (Plan{{{0, 0, 1}}, {{0, 1, 2}}, {{0, 2, 3}}}));  // too large
  EXPECT_EQ(plan_media_shards({{10, 10}, {10, 10}}, 30, 2), (Plan{{{0, 0, 2}}, {{1, 0, 2}}}));  // pairs stay together
  EXPECT_EQ(plan_media_shards({{}, {}}, 30, 1), Plan{});
}

// A join that was killed after some shards continues, though their pieces are gone.
TEST(MediaShards, AJoinThatWasKilledContinues) {
  const testing::Folder whole, killed;
  const std::string wanted = write_set(whole, 40);
  std::filesystem::create_directory(killed / "work");
  MediaJoin join(killed / "work", write_pieces(killed));
  join.run(40, 1);
  const std::string data = killed / "work/data";
  ASSERT_TRUE(std::filesystem::exists(data + "/" + media_shard_name(2)));
  write_pieces(killed);
  std::filesystem::remove(killed / "a.safetensors");
  std::filesystem::remove(data + "/" + media_shard_name(2));  // needs the second piece only
  std::filesystem::remove(data + "/index.json");
  MediaJoin again(killed / "work", {killed / "a", killed / "b"});
  ASSERT_TRUE(again.has_begun());
  EXPECT_EQ(again.run(40, 1).documents, 4);
  again.publish(killed / "set");
  again.publish(killed / "set");  // killed before its folder was removed
  for (const MediaShard& shard : parse_media_index(read_file(wanted + "/index.json"), "index")) {
    EXPECT_EQ(read_file(killed / "set/" + shard.file), read_file(wanted + "/" + shard.file)) << shard.file;
  }
  EXPECT_FALSE(std::filesystem::exists(killed / "b.safetensors"));
}

TEST(MediaSet, ShardsThatAreNotThoseOfTheIndexAreRefused) {
  const testing::Folder folder;
  const std::string set = write_set(folder, 40), index = set + "/index.json", second = set + "/" + media_shard_name(1);
  const std::string bytes = read_file(second), text = read_file(index);
  const auto refusal = [&] { return config_error([&] { MediaSet{set}; }); };
  EXPECT_EQ(refusal(), "");
  write_file(second, bytes.substr(0, bytes.size() - 1));
  EXPECT_THAT(refusal(), HasSubstr("but shard-00001.safetensors in"));
  std::filesystem::remove(second);
  EXPECT_THAT(refusal(), HasSubstr("copy all shards of the data set"));
  write_file(second, bytes);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    write_file(index, changed);
    return refusal();
  };
  EXPECT_THAT(with("\"file\": \"shard-00000", "\"file\": \"../shard-00000"), HasSubstr("is not the name of a file"));
  EXPECT_THAT(with("\"file\": \"shard-00000", "\"name\": \"shard-00000"), HasSubstr("the key 'file' is missing"));
  EXPECT_THAT(with("\"bytes\": ", "\"bytes\": -"), HasSubstr("\"bytes\" must be a whole number >= 0"));
  EXPECT_THAT(with("_index\": 1", "_index\": 2"), HasSubstr("\"concord_media_index\" must be 1"));
  std::string tokens = text;
  tokens.replace(tokens.rfind("\"tokens\": "), 10, "\"tokens\": 1");
  write_file(index, tokens);
  EXPECT_THAT(refusal(), HasSubstr("does not have the samples that"));
}

DataArguments arguments_for(const std::string& path) {
  return {.path = path, .micro_batch_size = 4, .shuffle = false, .drop_last = false, .epochs = 1};
}

TEST(MediaSource, BatchesHaveTheMediaOfTheirRows) {
  const testing::Folder folder;
  DataArguments arguments = arguments_for(write_set(folder, 40));
  const TokenBatch padded = DataLoader(arguments).next()->front();
  EXPECT_EQ(padded.columns, 5);
  const BatchMedia& found = padded.media;
  EXPECT_THAT(found.images,
              ElementsAre(MediaGrid{1, 1, 2}, MediaGrid{1, 1, 1}, MediaGrid{1, 3, 1}, MediaGrid{1, 1, 1}));
  EXPECT_THAT(found.videos, ElementsAre(MediaGrid{2, 1, 1}));
  EXPECT_THAT(found.seconds_per_group, ElementsAre(0.5));
  ASSERT_EQ(found.image_pixels.size(), 7U * 3 * 2);  // channels, times
  const std::vector<float> first(found.image_pixels.begin(), found.image_pixels.begin() + 6);
  EXPECT_THAT(first, ElementsAre(5.0F, 5.0F, 5.0F, 5.0F, 5.0F, 5.0F));  // (10 - 0) / 2, (11 - 1) / 2, (12 - 2) / 2
  EXPECT_EQ(found.image_pixels.at(12), 20.0F);                          // of the third sample
  const std::vector<float> video(found.video_pixels.begin(), found.video_pixels.begin() + 6);
  EXPECT_THAT(video, ElementsAre(30.0F, 30.5F, 30.5F, 31.0F, 31.0F, 31.5F));  // two frames of each channel
  EXPECT_THAT(open_sample_source(arguments)->media_patches(3), ElementsAre(1, 1, 1));
  arguments.packing = true;
  arguments.seq_length = 16;
  const TokenBatch packed = DataLoader(arguments).next()->front();
  EXPECT_THAT(packed.cu_seqlens, ElementsAre(0, 4, 6, 11, 15));
  EXPECT_EQ(packed.media, padded.media);
  EXPECT_TRUE(packed.position_ids.empty());  // the model places images on grids
}

TEST(MediaSource, MediaAreNeverCut) {
  const testing::Folder folder;
  DataArguments arguments = arguments_for(write_set(folder));
  arguments.cutoff_len = 3;
  const std::unique_ptr<SampleSource> right = open_sample_source(arguments);
  EXPECT_EQ(right->size(), 3);  // the third loses a token of its image
  EXPECT_EQ(right->cut_text(), "2 cut to 3 tokens, 1 dropped of 4 samples");
  EXPECT_EQ(right->at(1).media.images.size(), 0U);
  arguments.truncation = Truncation::left;
  EXPECT_EQ(open_sample_source(arguments)->size(), 1);
  arguments.truncation = Truncation::split;
  EXPECT_EQ(open_sample_source(arguments)->size(), 1);
}

TEST(MediaSource, PairsShareTheMediaOfTheirPrompt) {
  const testing::Folder folder;
  const std::string path = folder / "pairs.safetensors";
  MediaFileBuilder file(path, small_format(), /*pairs=*/true);
  file.add(tokens({kImage, 1, 2}), media({image(1, 1)}, 10), 0.5);
  file.add(tokens({kImage, 1, 3}), SampleMedia{});
  file.add(tokens({4, 5}), SampleMedia{});
  file.add(tokens({4, 6}), SampleMedia{});
  file.finish();
  DataArguments arguments = arguments_for(path);
  EXPECT_THAT(config_error([&] { open_sample_source(arguments); }), HasSubstr("set stage: dpo"));
  arguments.pairs = true;
  arguments.micro_batch_size = 2;
  const TokenBatch batch = DataLoader(arguments).next()->front();
  EXPECT_THAT(batch.media.images, ElementsAre(MediaGrid{1, 1, 1}, MediaGrid{1, 1, 1}));
  EXPECT_THAT(batch.margins, ElementsAre(0.5, 0));
  const std::vector<float>& pixels = batch.media.image_pixels;
  EXPECT_EQ(std::vector(pixels.begin(), pixels.begin() + 6), std::vector(pixels.begin() + 6, pixels.end()));
  arguments.path = write_set(folder);
  EXPECT_THAT(config_error([&] { open_sample_source(arguments); }), HasSubstr("single samples; stages dpo and rm"));
}

TEST(MediaSource, DataWithOtherMediaIsOtherData) {
  const testing::Folder folder;
  const auto identity_with = [&](char first) {
    MediaFileBuilder file(folder / "one.safetensors", small_format());
    file.add(tokens({kImage, 1, 2}), media({image(1, 1)}, first));
    file.finish();
    return open_sample_source(arguments_for(folder / "one.safetensors"))->identity();
  };
  EXPECT_NE(identity_with(10), identity_with(11));
}

// One sample with an image of 1 x 2 patches, or with a change.
struct Tensors {
  std::vector<int32_t> ids = {1, 9, 9};
  std::vector<int64_t> starts = {0, 3};
  std::vector<int32_t> grid = {1, 1, 2};
  std::vector<int32_t> owner = {0};
  int64_t rows = 2;
  std::vector<uint8_t> kind = {1};
  std::vector<float> seconds = {1};
  std::string sources = "\n";
  std::string mean = "[0, 0, 0]", std = "[1, 1, 1]";
};

std::string refusal(const Tensors& given) {
  using safetensors::DType;
  const testing::Folder folder;
  const std::string path = folder / "bad.safetensors", pixels(static_cast<size_t>(3 * given.rows), 'x');
  const auto count = static_cast<int64_t>(given.ids.size());
  const safetensors::Metadata metadata{
      {"concord_media",
       R"({"patch_size": 1, "temporal_patch_size": 2, "merge_size": 1, "image_token": 9, "video_token": 8,
                            "mean": )" +
           given.mean + ", \"std\": " + given.std + "}"}};
  safetensors::Writer file(path,
                           {{"input_ids", DType::kI32, {count}},
                            {"labels", DType::kI32, {count}},
                            {"sample_starts", DType::kI64, {std::ssize(given.starts)}},
                            {"pixels", DType::kU8, {given.rows, 3}},
                            {"grid_thw", DType::kI32, {std::ssize(given.grid) / 3, 3}},
                            {"media_sample", DType::kI32, {std::ssize(given.owner)}},
                            {"media_kind", DType::kU8, {std::ssize(given.kind)}},
                            {"seconds_per_group", DType::kF32, {std::ssize(given.seconds)}},
                            {"sources", DType::kU8, {std::ssize(given.sources)}}},
                           metadata);
  const auto write = [&](const char* name, const auto& values) {
    file.write(name, 0, std::as_bytes(std::span(values)));
  };
  write("input_ids", given.ids);
  write("labels", given.ids);
  write("sample_starts", given.starts);
  write("pixels", pixels);
  write("grid_thw", given.grid);
  write("media_sample", given.owner);
  write("media_kind", given.kind);
  write("seconds_per_group", given.seconds);
  write("sources", given.sources);
  file.finish();
  return config_error([&] { MediaFile{path}; });
}

TEST(MediaFile, TensorsThatDoNotBelongTogetherAreRefused) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(refusal({}), "");
  EXPECT_THAT(refusal({.starts = {0, 4}}), HasSubstr("sample_starts must ascend from 0 to the 3 tokens"));
  EXPECT_THAT(refusal({.rows = 3}), HasSubstr("pixels have the shape [3, 3], but the media have 2 patches of 3 bytes"));
  EXPECT_THAT(refusal({.grid = {1, 0, 2}, .rows = 0}), HasSubstr("image 0 has the grid 1 x 0 x 2"));
  EXPECT_THAT(refusal({.grid = {2, 1, 1}}), HasSubstr("image 0 has the grid 2 x 1 x 1"));
  EXPECT_THAT(refusal({.grid = {1, 1 << 30, 1 << 30}}), HasSubstr("image 0 has the grid"));
  EXPECT_THAT(refusal({.owner = {1}}), HasSubstr("media_sample must ascend, and name one of the 1"));
  EXPECT_THAT(refusal({.ids = {1, 1, 9}}), HasSubstr("sample 0: has 1 image tokens (id 9), but its images have 2"));
  EXPECT_THAT(refusal({.kind = {3}}), HasSubstr("media_kind of medium 0 is 3; must be 1 or 2"));
  EXPECT_THAT(refusal({.kind = {}}), HasSubstr("must have a value for each of the 1 media"));
  EXPECT_THAT(refusal({.kind = {2}}), HasSubstr("pixels have the shape [2, 3], but the media have 0 patches"));
  EXPECT_THAT(refusal({.seconds = {kNan}}), HasSubstr("seconds_per_group of medium 0 is nan; must be > 0"));
  EXPECT_THAT(refusal({.sources = "a\nb\n"}), HasSubstr("sources must have a line for each of the 1 media"));
  EXPECT_THAT(refusal({.std = "[1, 0, 1]"}), HasSubstr("values that are out of range"));
  EXPECT_THAT(refusal({.mean = "[1, NaN, 1]"}), HasSubstr("is not JSON"));
}

}  // namespace
}  // namespace concord
