// Blends and splits against blends.json, which Megatron-core's own builder has made from the files beside it.
#include "trainer/data/blend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "trainer/data/loader.h"
#include "trainer/data/numpy_sum.h"
#include "trainer/data/split.h"
#include "trainer/data/testing/folder.h"

namespace concord {
namespace {

using nlohmann::json;
using testing::config_error;
using testing::Folder;
using ::testing::HasSubstr;
using testing::read_file;
using testing::write_file;

const std::string kData = CONCORD_GOLDEN "/data/";

const json& blends() {
  static const json document = json::parse(read_file(kData + "blends.json"));
  return document;
}

std::vector<std::string> words_of(const std::string& split) {
  std::vector<std::string> words(1);
  for (const char c : split) {
    if (c == ',') {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  return words;
}

TEST(Blend, OrdersAreMegatrons) {
  for (const json& each : blends()["orders"]) {
    const auto sizes = each["sizes"].get<std::vector<int64_t>>();
    std::vector<BlendedSample> order;
    if (each.contains("weights")) {
      const std::vector<double> weights = normalized(each["weights"].get<std::vector<double>>());
      const BlendSizes found = blend_sizes(weights, each["size"].get<int64_t>());
      EXPECT_EQ(found.contributed, sizes);
      EXPECT_EQ(found.asked_for, each["asked_for"].get<std::vector<int64_t>>());
      order = blend_by_weights(normalized(weights), found.total);
    } else {
      order = blend_all(sizes);
    }
    const auto sources = each["source"].get<std::vector<uint16_t>>();
    const auto samples = each["sample"].get<std::vector<uint32_t>>();
    ASSERT_EQ(order.size(), sources.size());
    for (size_t i = 0; i < order.size(); ++i) {
      EXPECT_EQ(order[i], (BlendedSample{sources[i], samples[i]})) << each["sizes"] << ", sample " << i;
    }
  }
}

TEST(Blend, SplitsAreMegatrons) {
  for (const json& each : blends()["splits"]) {
    const Split split = parse_split(words_of(each["split"]));
    for (size_t part = 0; part < 3; ++part) {
      const json& expected = each["ranges"][part];
      ASSERT_EQ(split[part].has_value(), !expected.is_null()) << each;
      if (!split[part]) continue;
      const IndexRange range = range_of(*split[part], each["count"].get<int64_t>());
      EXPECT_EQ(json({range.begin, range.end}), expected) << each;
    }
  }
}

TEST(Blend, SamplesHoldMegatronsTokens) {
  for (const json& each : blends()["blends"]) {
    auto blend = each["blend"].get<std::vector<std::string>>();
    for (std::string& word : blend) {
      if (std::isalpha(static_cast<unsigned char>(word[0])) != 0) word = kData + word;
    }
    DataArguments arguments{.split = words_of(each["split"]), .seq_length = blends()["seq_length"]};
    arguments.seed = blends()["seed"];
    if (blend.size() == 1) {
      arguments.path = blend[0];
    } else {
      arguments.blend = blend;
    }
    if (!each["sizes"][0].is_null()) arguments.samples_wanted = each["sizes"][0].get<int64_t>();
    const auto source = open_sample_source(arguments);
    const auto texts = each["train"].get<std::vector<std::vector<int64_t>>>();
    ASSERT_EQ(source->size(), static_cast<int64_t>(texts.size())) << each["blend"];
    for (size_t i = 0; i < texts.size(); ++i) {
      const Sample sample = source->at(static_cast<int64_t>(i));
      EXPECT_EQ(sample.ids, std::vector<int64_t>(texts[i].begin(), texts[i].end() - 1)) << "sample " << i;
      EXPECT_EQ(sample.labels, std::vector<int64_t>(texts[i].begin() + 1, texts[i].end())) << "sample " << i;
    }
  }
}

TEST(Blend, SamplesThatComeOneByOneAreRepeatedInAnotherOrder) {
  const Folder folder;
  std::string few, many;
  for (int i = 0; i < 4; ++i) few += "{\"input_ids\": [" + std::to_string(i) + ", 1]}\n";
  for (int i = 0; i < 40; ++i) many += "{\"input_ids\": [" + std::to_string(100 + i) + ", 1]}\n";
  DataArguments arguments;
  arguments.blend = {"1", write_file(folder / "few.jsonl", few), "1", write_file(folder / "many.jsonl", many)};
  arguments.samples_wanted = 40;
  const auto source = open_sample_source(arguments);
  ASSERT_EQ(source->size(), 40);
  std::vector<std::vector<int64_t>> passes(5);
  for (int64_t i = 0, seen = 0; i < 40; ++i) {
    const int64_t id = source->at(i).ids[0];
    if (id < 100) passes[static_cast<size_t>(seen++ / 4)].push_back(id);
  }
  EXPECT_NE(passes[0], passes[1]);
  for (auto& pass : passes) EXPECT_THAT(pass, ::testing::UnorderedElementsAre(0, 1, 2, 3));
}

TEST(Blend, PartsOfASplitAreAllOfItOnce) {
  const Folder folder;
  std::string lines;
  for (int i = 0; i < 10; ++i) lines += "{\"input_ids\": [" + std::to_string(i) + ", 1]}\n";
  DataArguments arguments{.path = write_file(folder / "a.jsonl", lines), .split = {"7", "2", "1"}};
  std::vector<int64_t> seen;
  for (const DataPart part : {DataPart::train, DataPart::valid, DataPart::test}) {
    arguments.part = part;
    const auto source = open_sample_source(arguments);
    for (int64_t i = 0; i < source->size(); ++i) seen.push_back(source->at(i).ids[0]);
  }
  EXPECT_THAT(seen, ::testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  arguments.split = {"1"};
  EXPECT_THAT(config_error([&] { open_sample_source(arguments); }),
              HasSubstr("leaves none of its 10 samples for test"));
}

TEST(Blend, WhatCannotBeIsSaid) {
  EXPECT_THAT(config_error([] { parse_blend({"0.3", "a", "x", "b"}); }), HasSubstr("as the weight of"));
  EXPECT_THAT(config_error([] { parse_blend({"0", "a"}); }), HasSubstr("must be a number > 0"));
  EXPECT_THAT(config_error([] { parse_blend({"a", "0.7", "b"}); }), HasSubstr("among its paths"));
  EXPECT_THAT(config_error([] { open_sample_source({.blend = {"1", "a", "2", "b"}}); }), HasSubstr("max_steps"));
  EXPECT_THAT(config_error([] { parse_split({"1", "x"}); }), HasSubstr("'x'"));
  EXPECT_THAT(config_error([] { parse_split({"0", "1"}); }), HasSubstr("nothing for training"));
  EXPECT_THAT(config_error([] { parse_split({"1", "1", "1", "1"}); }), HasSubstr("three parts"));
}

// Computed by RampupBatchsizeNumMicroBatchesCalculator of megatron.core.num_microbatches_calculator with
// (global_batch_size, start, increment, samples) = (24, 8, 4, 100): its global batch size after each batch.
TEST(BatchRamp, SizesAreMegatrons) {
  const BatchRamp ramp{.start = 8, .increment = 4, .samples = 100};
  std::vector<int64_t> sizes;
  for (int64_t consumed = 0; sizes.size() < 13; consumed += sizes.back()) {
    sizes.push_back(ramp.rows_after(consumed, 24));
  }
  EXPECT_EQ(sizes, (std::vector<int64_t>{8, 8, 8, 8, 12, 12, 16, 16, 20, 24, 24, 24, 24}));
}

TEST(BatchRamp, GrowsAndResumesWithTheSameSamplesOnAnyRanks) {
  const Folder folder;
  std::string lines;
  for (int i = 0; i < 100; ++i) lines += "{\"input_ids\": [" + std::to_string(i) + ", 1]}\n";
  DataArguments arguments{.path = write_file(folder / "a.jsonl", lines), .micro_batch_size = 2, .accumulation = 6};
  arguments.ramp = BatchRamp{.start = 4, .increment = 4, .samples = 20};
  const auto ids_of = [](const std::vector<TokenBatch>& batches) {
    std::vector<int64_t> ids;
    for (const TokenBatch& batch : batches) {
      for (int64_t row = 0; row < batch.rows; ++row) ids.push_back(batch.ids[static_cast<size_t>(row * batch.columns)]);
    }
    return ids;
  };
  DataLoader whole(arguments);
  std::vector<std::vector<int64_t>> expected;
  DataPosition middle;
  for (int i = 0; i < 14; ++i) {
    expected.push_back(ids_of(*whole.next()));
    if (i == 2) middle = whole.position();
  }
  std::vector<size_t> sizes;
  for (const auto& batch : expected) sizes.push_back(batch.size());
  EXPECT_THAT(std::vector<size_t>(sizes.begin(), sizes.begin() + 5), ::testing::ElementsAre(4, 4, 4, 8, 12));
  EXPECT_EQ(sizes.back(), 12U);
  arguments.accumulation = 3;
  arguments.dp_size = 2;
  arguments.dp_rank = 1;
  DataLoader second(arguments);
  second.restore(middle);
  for (size_t i = 3; i < expected.size(); ++i) {
    std::vector<int64_t> own;
    for (size_t row = 0; row < expected[i].size(); ++row) {
      if (row / 2 % 2 == 1) own.push_back(expected[i][row]);
    }
    EXPECT_EQ(ids_of(*second.next()), own) << "batch " << i;
  }
  arguments.ramp->increment = 6;
  EXPECT_THAT(config_error([&] { DataLoader{arguments}; }), HasSubstr("is not reached"));
  arguments.ramp->increment = 2;
  EXPECT_THAT(config_error([&] { DataLoader{arguments}; }), HasSubstr("multiples of 4"));
}

}  // namespace
}  // namespace concord
