#include "trainer/data/sources/gpt_indices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "trainer/data/numpy_shuffle.h"
#include "trainer/data/sources/gpt_source.h"
#include "trainer/data/sources/indexed_dataset.h"
#include "trainer/data/testing/folder.h"

namespace concord {
namespace {

using nlohmann::json;
using testing::config_error;
using ::testing::HasSubstr;
using testing::read_file;

const std::string kGoldenIndices = CONCORD_GOLDEN "/data/";

json golden() { return json::parse(read_file(kGoldenIndices + "gpt_indices.json")); }

class GoldenCase : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    document_ = golden();
    expected_ = document_["cases"][GetParam()];
    options_ = {.seq_length = document_["seq_length"], .samples = {}, .seed = document_["seed"]};
    if (!expected_["num_samples"].is_null()) options_.samples = expected_["num_samples"].get<int64_t>();
  }

  json document_;
  json expected_;
  GptIndexOptions options_;
};

TEST_P(GoldenCase, IndicesAreMegatrons) {
  const GptIndices indices = build_gpt_indices(IndexedDataset(kGoldenIndices + "tokens").lengths(), options_);
  EXPECT_EQ(indices.epochs, expected_["epochs"].get<int64_t>());
  EXPECT_EQ(indices.separate_final_epoch, expected_["separate_final_epoch"].get<bool>());
  EXPECT_EQ(indices.document_index, expected_["document_index"].get<std::vector<int32_t>>());
  EXPECT_EQ(indices.shuffle_index, expected_["shuffle_index"].get<std::vector<uint32_t>>());
  std::vector<std::vector<int32_t>> starts;
  for (const SampleStart& start : indices.sample_index) starts.push_back({start.document, start.offset});
  EXPECT_EQ(starts, expected_["sample_index"].get<std::vector<std::vector<int32_t>>>());
}

TEST_P(GoldenCase, SamplesHoldMegatronsTokens) {
  const DataArguments arguments{.path = kGoldenIndices + "tokens",
                                .seq_length = options_.seq_length,
                                .seed = options_.seed,
                                .samples_wanted = options_.samples};
  const auto source = open_sample_source(arguments);
  const auto texts = expected_["samples"].get<std::vector<std::vector<int64_t>>>();
  ASSERT_EQ(source->size(), static_cast<int64_t>(texts.size()));
  for (size_t i = 0; i < texts.size(); ++i) {
    const Sample sample = source->at(static_cast<int64_t>(i));
    EXPECT_EQ(sample.ids, std::vector<int64_t>(texts[i].begin(), texts[i].end() - 1)) << "sample " << i;
    EXPECT_EQ(sample.labels, std::vector<int64_t>(texts[i].begin() + 1, texts[i].end())) << "sample " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenCase, ::testing::Values("one_epoch", "three_epochs", "three_epochs_part"));

TEST(GptIndices, AllGoldenCasesAreTested) { EXPECT_EQ(golden()["cases"].size(), 3U); }

// numpy.random.RandomState(5).shuffle(numpy.arange(10)), numpy 2.4.6.
TEST(GptIndices, ShuffleIsNumpys) {
  std::vector<int> values(10);
  std::iota(values.begin(), values.end(), 0);
  std::mt19937 random(5);
  numpy_shuffle(std::span(values), random);
  EXPECT_EQ(values, (std::vector<int>{9, 5, 2, 4, 7, 1, 0, 8, 6, 3}));
}

// Computed by hand: the concatenation of the documents in order, in samples of S + 1 tokens that overlap by one.
TEST(GptIndices, UnshuffledSamplesAreTheTextInItsOrder) {
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<int32_t> lengths(1 + random() % 20);
    for (int32_t& length : lengths) length = static_cast<int32_t>(random() % 12);  // empty ones too
    const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    const int64_t seq_length = 1 + random() % 9;
    if (tokens < seq_length + 1) continue;
    const GptIndices indices = build_gpt_indices(lengths, {.seq_length = seq_length, .shuffle = false});
    ASSERT_EQ(indices.shuffle_index.size(), static_cast<size_t>((tokens - 1) / seq_length));
    for (size_t i = 0; i < indices.sample_index.size(); ++i) {
      const SampleStart start = indices.sample_index[i];
      const int64_t position =
          std::accumulate(lengths.begin(), lengths.begin() + start.document, int64_t{start.offset});
      EXPECT_EQ(position, static_cast<int64_t>(i) * seq_length);
    }
  }
}

TEST(GptIndices, WhatCannotBeIndexedIsRefused) {
  const std::vector<int32_t> lengths = {5, 5};
  EXPECT_THAT(config_error([&] { build_gpt_indices(lengths, {.seq_length = 10}); }),
              HasSubstr("10 tokens, but one sample"));
  EXPECT_THAT(config_error([&] { build_gpt_indices({}, {.seq_length = 1}); }), HasSubstr("0 tokens"));
  EXPECT_THAT(config_error([&] { build_gpt_indices({}, {.seq_length = 1, .samples = 5}); }), HasSubstr("0 tokens"));
  EXPECT_THAT(config_error([&] { build_gpt_indices(lengths, {.seq_length = 0}); }), HasSubstr("sequence length is 0"));
  EXPECT_THAT(config_error([&] { build_gpt_indices(lengths, {.seq_length = 1, .seed = -1}); }),
              HasSubstr("seed is -1"));
  EXPECT_THAT(config_error([&] { build_gpt_indices(lengths, {.seq_length = 1, .seed = int64_t{1} << 32}); }),
              HasSubstr("seed"));
  EXPECT_THAT(config_error([&] { build_gpt_indices(lengths, {.seq_length = 1, .samples = 0}); }),
              HasSubstr("0 samples"));
  EXPECT_THAT(config_error([&] { build_gpt_indices(lengths, {.seq_length = 2, .samples = int64_t{1} << 62}); }),
              HasSubstr("samples"));
  EXPECT_THAT(config_error([&] { build_gpt_indices(lengths, {.seq_length = 2, .samples = int64_t{1} << 40}); }),
              HasSubstr("2^31 - 1"));
}

}  // namespace
}  // namespace concord
