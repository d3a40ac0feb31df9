// Blends and splits compared with blends.json, which Megatron-core's own builder has computed from the files next to
// it.
#include "trainer/data/sources/blend.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "trainer/data/loader.h"
#include "trainer/data/numpy_sum.h"
#include "trainer/data/sources/split.h"
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

json golden_runs() { return json::parse(read_file(kData + "runs.json")); }

// Rows of |tokens| as in the data: labels are the next tokens.
class Rows : public SampleSource {
 public:
  explicit Rows(std::vector<std::vector<int64_t>> rows) : rows_(std::move(rows)) {}
  int64_t size() const override { return static_cast<int64_t>(rows_.size()); }
  int64_t length(int64_t index) const override { return std::ssize(rows_[static_cast<size_t>(index)]); }
  Sample at(int64_t index) const override {
    Sample sample{.ids = rows_[static_cast<size_t>(index)], .labels = {}};
    sample.labels.assign(sample.ids.begin() + 1, sample.ids.end());
    sample.labels.push_back(1);
    return sample;
  }
  bool joins_documents() const override { return true; }
  const std::string& name() const override { return name_; }

 private:
  std::vector<std::vector<int64_t>> rows_;
  std::string name_ = "rows";
};

// Megatron's samplers and calculators, with the position that a resumed run begins at.
TEST(BatchRamp, RunsReadMegatronsSamplesAlsoAfterTheyAreResumed) {
  const nlohmann::json golden = golden_runs();
  ASSERT_EQ(golden["runs"].size(), 5U);
  for (const nlohmann::json& run : golden["runs"]) {
    const int64_t ranks = run["dp_size"], micro = run["micro_batch_size"], resumed = run["resumed_after"];
    std::vector<std::vector<int64_t>> rows(run["samples"].get<size_t>());
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = {static_cast<int64_t>(i)};
    for (int64_t rank = 0; rank < ranks; ++rank) {
      DataArguments arguments{.micro_batch_size = micro,
                              .accumulation = run["global_batch_size"].get<int64_t>() / ranks / micro,
                              .dp_rank = rank,
                              .dp_size = ranks,
                              .shuffle = false};
      if (const nlohmann::json& ramp = run["rampup_batch_size"]; !ramp.is_null())
        arguments.ramp = BatchRamp{ramp[0], ramp[1], ramp[2]};
      auto loader = std::make_unique<DataLoader>(arguments, std::make_unique<Rows>(rows));
      int64_t step = 0;
      for (const nlohmann::json& expected : run["steps"]) {
        if (step++ == resumed) {
          const DataPosition position = loader->position();
          loader = std::make_unique<DataLoader>(arguments, std::make_unique<Rows>(rows));
          loader->restore(position);
        }
        EXPECT_EQ(loader->batch_rows(), expected["global_batch_size"].get<int64_t>());
        std::vector<std::vector<int64_t>> ids;
        const std::vector<TokenBatch> batches = *loader->next();
        for (const TokenBatch& batch : batches) ids.push_back(batch.ids);
        EXPECT_EQ(nlohmann::json(ids), expected["indices"][static_cast<size_t>(rank)]) << "step " << step;
      }
    }
  }
}

// Returns which token attends to which in a batch, row by row, without padding.
std::vector<std::string> attends(const TokenBatch& batch, int64_t length) {
  std::vector<std::string> lines;
  const std::vector<int64_t> whole = {0, length};
  const std::vector<int64_t>& ends = batch.cu_seqlens.empty() ? whole : batch.cu_seqlens;
  for (size_t i = 0; i + 1 < ends.size(); ++i) {
    for (int64_t t = ends[i]; t < ends[i + 1]; ++t) {
      std::string line(static_cast<size_t>(length), '0');
      for (int64_t seen = ends[i]; seen <= t; ++seen) line[static_cast<size_t>(seen)] = '1';
      lines.push_back(line);
    }
  }
  return lines;
}

TEST(DocumentEnds, PositionsMasksAndLossesAreMegatrons) {
  const nlohmann::json golden = golden_runs();
  ASSERT_EQ(golden["document_ends"].size(), 72U);
  for (const nlohmann::json& row : golden["document_ends"]) {
    const std::vector<int64_t> tokens = row["tokens"];
    DataArguments arguments{.shuffle = false,
                            .reset_position_ids = row["reset_position_ids"],
                            .reset_attention_mask = row["reset_attention_mask"],
                            .eod_mask_loss = row["eod_mask_loss"],
                            .eod_token_id = golden["eod"]};
    DataLoader loader(arguments, std::make_unique<Rows>(std::vector<std::vector<int64_t>>{tokens}));
    const TokenBatch batch = loader.next()->front();
    EXPECT_EQ(batch.ids, tokens);
    std::vector<int64_t> counts, positions = batch.position_ids;
    for (const int64_t label : batch.labels) counts.push_back(label != kIgnoredToken);
    EXPECT_EQ(nlohmann::json(counts), row["loss_mask"]) << row;
    for (size_t t = 0; batch.position_ids.empty() && t < tokens.size(); ++t)
      positions.push_back(static_cast<int64_t>(t));
    EXPECT_EQ(nlohmann::json(positions), row["position_ids"]) << row;
    EXPECT_EQ(nlohmann::json(attends(batch, std::ssize(tokens))), row["attends"]) << row;
  }
}

// Each document gets the padding that context parallelism needs; its own tokens keep their labels and positions.
TEST(DocumentEnds, DocumentsArePaddedOneByOneAndOfEveryRow) {
  const std::vector<std::vector<int64_t>> rows = {{1, 2, 9, 3}, {4, 9, 5, 6}};
  DataArguments arguments{.micro_batch_size = 2,
                          .shuffle = false,
                          .reset_attention_mask = true,
                          .eod_mask_loss = true,
                          .eod_token_id = 9,
                          .pad_multiple = 4};
  const TokenBatch batch = DataLoader(arguments, std::make_unique<Rows>(rows)).next()->front();
  constexpr int64_t x = kIgnoredToken;
  EXPECT_EQ(batch.rows, 1);
  EXPECT_EQ(batch.cu_seqlens, (std::vector<int64_t>{0, 4, 8, 12, 16}));
  EXPECT_EQ(batch.ids, (std::vector<int64_t>{1, 2, 9, 0, 3, 0, 0, 0, 4, 9, 0, 0, 5, 6, 0, 0}));
  EXPECT_EQ(batch.labels, (std::vector<int64_t>{2, 9, x, x, 1, x, x, x, 9, x, x, x, 6, 1, x, x}));
  EXPECT_EQ(batch.position_ids, (std::vector<int64_t>{0, 1, 2, 3, 3, 4, 5, 6, 0, 1, 2, 3, 2, 3, 4, 5}));
}

TEST(DocumentEnds, SamplesWithoutDocumentsOrWithoutTheirEndAreRefused) {
  const Folder folder;
  DataArguments arguments{
      .path = write_file(folder / "a.jsonl", "{\"input_ids\": [1, 2]}\n"), .eod_mask_loss = true, .eod_token_id = 9};
  EXPECT_THAT(config_error([&] { DataLoader{arguments}; }), HasSubstr("these samples come one by one"));
  arguments.eod_token_id = -1;
  EXPECT_THAT(
      config_error([&] { DataLoader(arguments, std::make_unique<Rows>(std::vector<std::vector<int64_t>>{{1}})); }),
      HasSubstr("give eod_token_id"));
}

// Only rows cut from documents contain document ends. A blend is rejected if one source has other samples.
TEST(DocumentEnds, OfABlendNeedDocumentsInAllOfItsSources) {
  const Folder folder;
  const std::string one = write_file(folder / "a.txt", "ab\n\ncd\n\nef"),
                    other = write_file(folder / "b.txt", "uv\n\nwx\n\nyz");
  const std::string samples = write_file(folder / "c.jsonl", "{\"input_ids\": [1, 2]}\n{\"input_ids\": [3, 4]}\n");
  constexpr int64_t kEnd = 256, x = kIgnoredToken;
  DataArguments arguments{.seq_length = 4,
                          .micro_batch_size = 4,
                          .shuffle = false,
                          .reset_position_ids = true,
                          .eod_mask_loss = true,
                          .eod_token_id = kEnd};
  for (const auto& blend : {std::vector{one, samples}, std::vector{samples, one}}) {
    arguments.blend = blend;
    EXPECT_THAT(config_error([&] { DataLoader{arguments}; }), HasSubstr("these samples come one by one"));
  }
  arguments.blend = {one, other};
  const TokenBatch batch = DataLoader(arguments).next()->front();
  EXPECT_EQ(batch.ids, (std::vector<int64_t>{'a', 'b', kEnd, 'c', 'u', 'v', kEnd, 'w',  //
                                             'd', kEnd, 'e', 'f', 'x', kEnd, 'y', 'z'}));
  EXPECT_EQ(batch.labels, (std::vector<int64_t>{'b', kEnd, x, 'd', 'v', kEnd, x, 'x',  //
                                                kEnd, x, 'f', kEnd, kEnd, x, 'z', kEnd}));
  EXPECT_EQ(batch.position_ids, (std::vector<int64_t>{0, 1, 2, 0, 0, 1, 2, 0, 0, 1, 0, 1, 0, 1, 0, 1}));
}

TEST(Blend, PairsStayTogetherInBlendsAndSplits) {
  const Folder folder;
  const auto file = [&](const std::string& prompts) {
    std::string lines;
    for (const char prompt : prompts) {
      lines += fmt::format(R"({{"prompt": "{}", "chosen": "y", "rejected": "n"}})", prompt) + "\n";
    }
    return write_file(folder / (prompts + ".jsonl"), lines);
  };
  DataArguments arguments{.tokenizer = "byte", .shuffle = false, .pairs = true};
  // Returns the prompts of all pairs, whose halves have to follow each other.
  const auto prompts = [&] {
    const auto source = open_sample_source(arguments);
    std::string found;
    for (int64_t i = 0; i < source->size(); i += 2) {
      const Sample chosen = source->at(i), rejected = source->at(i + 1);
      EXPECT_EQ(chosen.ids.at(0), rejected.ids.at(0));
      EXPECT_EQ(chosen.ids.at(1), 'y');
      EXPECT_EQ(rejected.ids.at(1), 'n');
      EXPECT_EQ(source->length(i), static_cast<int64_t>(chosen.ids.size()));
      found += static_cast<char>(chosen.ids.at(0));
    }
    return found;
  };
  arguments.blend = {file("abcd"), file("ef")};
  std::string order;
  for (const BlendedSample& each : blend_all({4, 2})) order += (each.source == 0 ? "abcd" : "ef")[each.index];
  EXPECT_EQ(prompts(), order);
  arguments.blend = {"0.5", file("abcd"), "0.5", file("ef")};
  arguments.samples_wanted = 6;
  EXPECT_EQ(prompts(), "aebfce") << "the second pass over a source follows its first";
  arguments.blend.clear();
  arguments.samples_wanted.reset();
  arguments.path = file("abcdefgh");
  arguments.split = {"2", "1", "1"};
  EXPECT_EQ(prompts(), "abcd");
  arguments.part = DataPart::valid;
  EXPECT_EQ(prompts(), "ef");
  arguments.blend = {arguments.path, file("ABCD")};
  EXPECT_EQ(prompts(), "eCf");
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
