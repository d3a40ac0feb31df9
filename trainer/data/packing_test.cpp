#include "trainer/data/packing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "trainer/data/testing/folder.h"

namespace concord {
namespace {

using testing::config_error;
using ::testing::HasSubstr;

// First fit by definition, row after row.
PackedRows slow_first_fit(const std::vector<int64_t>& lengths, int64_t capacity, int64_t multiple) {
  PackedRows rows;
  std::vector<int64_t> room;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t length = padded_length(lengths[i], multiple);
    size_t row = 0;
    while (row < rows.size() && room[row] < length) ++row;
    if (row == rows.size()) {
      rows.emplace_back();
      room.push_back(capacity);
    }
    rows[row].push_back(static_cast<int64_t>(i));
    room[row] -= length;
  }
  return rows;
}

TEST(Packing, FirstFitIsWhatTheDefinitionSays) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    const int64_t multiple = 1 + random() % 4, capacity = multiple * (4 + random() % 30);
    std::vector<int64_t> lengths(random() % 60);
    for (int64_t& length : lengths) length = 1 + static_cast<int64_t>(random() % static_cast<uint32_t>(capacity));
    EXPECT_EQ(pack_first_fit(lengths, capacity, multiple), slow_first_fit(lengths, capacity, multiple));
  }
}

// Best fit by definition: the row with the least room that fits, ties: the oldest.
PackedRows slow_best_fit(const std::vector<int64_t>& lengths, int64_t capacity, int64_t multiple) {
  std::vector<size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return lengths[a] > lengths[b]; });
  PackedRows rows;
  std::vector<int64_t> room;
  for (const size_t i : order) {
    const int64_t length = padded_length(lengths[i], multiple);
    size_t best = rows.size();
    for (size_t row = 0; row < rows.size(); ++row) {
      if (room[row] >= length && (best == rows.size() || room[row] < room[best])) best = row;
    }
    if (best == rows.size()) {
      rows.emplace_back();
      room.push_back(capacity);
    }
    rows[best].push_back(static_cast<int64_t>(i));
    room[best] -= length;
  }
  for (auto& row : rows) std::sort(row.begin(), row.end());
  std::sort(rows.begin(), rows.end());
  return rows;
}

TEST(Packing, BestFitIsWhatTheDefinitionSays) {
  std::mt19937 random(13);
  for (int round = 0; round < 200; ++round) {
    const int64_t multiple = 1 + random() % 4, capacity = multiple * (4 + random() % 30);
    std::vector<int64_t> lengths(random() % 60);
    for (int64_t& length : lengths) length = 1 + static_cast<int64_t>(random() % static_cast<uint32_t>(capacity));
    EXPECT_EQ(pack_best_fit(lengths, capacity, multiple), slow_best_fit(lengths, capacity, multiple));
  }
}

TEST(Packing, BestFitFillsRowsBetter) {
  std::mt19937 random(14);
  std::vector<int64_t> lengths(2000);
  for (int64_t& length : lengths) length = 1 + static_cast<int64_t>(random() % 512);
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  EXPECT_LE(pack_best_fit(lengths, 512, 1).size(), static_cast<size_t>(tokens / 512) * 102 / 100);
  EXPECT_LT(pack_best_fit(lengths, 512, 1).size(), pack_first_fit(lengths, 512, 1).size());
}

TEST(Packing, EverySampleIsInOneRowAndNoRowIsTooLong) {
  std::mt19937 random(12);
  std::vector<int64_t> lengths(5000);
  for (int64_t& length : lengths) length = 1 + static_cast<int64_t>(random() % 512);
  const PackedRows rows = pack_first_fit(lengths, 512, 8);
  std::vector<int64_t> seen;
  for (const auto& row : rows) {
    ASSERT_FALSE(row.empty());
    int64_t used = 0;
    for (const int64_t sample : row) used += padded_length(lengths[static_cast<size_t>(sample)], 8);
    EXPECT_LE(used, 512);
    seen.insert(seen.end(), row.begin(), row.end());
  }
  std::sort(seen.begin(), seen.end());
  std::vector<int64_t> all(lengths.size());
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(seen, all);
  EXPECT_LT(rows.size(), 5000U * 60 / 100);  // one sample per row would be 5000; half of that is the minimum
}

TEST(Packing, ASampleThatFitsNoRowIsRefused) {
  const std::vector<int64_t> lengths = {3, 9};
  EXPECT_THAT(config_error([&] { pack_first_fit(lengths, 8, 1); }), HasSubstr("sample 1 has 9 tokens"));
  const std::vector<int64_t> padded = {7};
  EXPECT_THAT(config_error([&] { pack_first_fit(padded, 7, 4); }), HasSubstr("8 padded"));
}

TEST(Packing, SequencesLieOneAfterAnotherWithTheirOwnPositions) {
  const std::vector<Sample> samples = {{{1, 2, 3}, {2, 3, kIgnoredToken}}, {{4, 5, 6, 7}, {5, 6, 7, 8}}, {{9}, {10}}};
  const TokenBatch batch = pack_samples(samples, 4, 77);
  EXPECT_EQ(batch.rows, 1);
  EXPECT_EQ(batch.columns, 12);
  EXPECT_EQ(batch.ids, (std::vector<int64_t>{1, 2, 3, 77, 4, 5, 6, 7, 9, 77, 77, 77}));
  EXPECT_EQ(batch.labels, (std::vector<int64_t>{2, 3, -100, -100, 5, 6, 7, 8, 10, -100, -100, -100}));
  EXPECT_EQ(batch.position_ids, (std::vector<int64_t>{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3}));
  EXPECT_EQ(batch.cu_seqlens, (std::vector<int64_t>{0, 4, 8, 12}));
}

TEST(Packing, NoTokenIsLostAndNoneComesTwice) {
  std::mt19937 random(13);
  for (const int64_t multiple : {1, 2, 8}) {
    std::vector<Sample> samples;
    int64_t next = 1;
    for (int i = 0; i < 40; ++i) {
      Sample& sample = samples.emplace_back();
      for (size_t length = 1 + random() % 20; length > 0; --length) {
        sample.ids.push_back(next);
        sample.labels.push_back(++next);
      }
    }
    const TokenBatch batch = pack_samples(samples, multiple, 0);
    std::vector<int64_t> ids, labels;
    for (size_t i = 0; i < batch.ids.size(); ++i) {
      if (batch.labels[i] == kIgnoredToken) continue;
      ids.push_back(batch.ids[i]);
      labels.push_back(batch.labels[i]);
    }
    std::vector<int64_t> expected(static_cast<size_t>(next) - 1);
    std::iota(expected.begin(), expected.end(), 1);
    EXPECT_EQ(ids, expected);
    std::iota(expected.begin(), expected.end(), 2);
    EXPECT_EQ(labels, expected);
    for (const int64_t boundary : batch.cu_seqlens) EXPECT_EQ(boundary % multiple, 0);
  }
}

}  // namespace
}  // namespace concord
