#include "trainer/data/sources/indexed_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "trainer/data/testing/folder.h"

namespace concord {
namespace {

using testing::config_error;
using testing::Folder;
using ::testing::HasSubstr;
using testing::read_file;
using testing::write_file;

const std::string kGoldenData = CONCORD_GOLDEN "/data/";
using Corpus = std::vector<std::vector<std::vector<int64_t>>>;  // documents of sequences of tokens

std::vector<int64_t> read_sequence(const IndexedDataset& data, int64_t sequence) {
  std::vector<int64_t> ids(static_cast<size_t>(data.length(sequence)));
  data.read(sequence, 0, data.length(sequence), ids.data());
  return ids;
}

Corpus read_all(const IndexedDataset& data) {
  Corpus corpus;
  for (int64_t document = 0; document < data.documents(); ++document) {
    auto& sequences = corpus.emplace_back();
    for (int64_t i = data.document_starts()[document]; i < data.document_starts()[document + 1]; ++i) {
      sequences.push_back(read_sequence(data, i));
    }
  }
  return corpus;
}

void write_corpus(const std::string& prefix, TokenType type, const Corpus& corpus) {
  IndexedWriter writer(prefix, type);
  for (const auto& document : corpus) {
    for (const auto& sequence : document) writer.add_sequence(sequence);
    writer.end_document();
  }
  writer.finish();
}

template <typename Value>
std::string replaced(std::string bytes, size_t at, Value value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
  return bytes;
}

class IndexedDatasetGolden : public ::testing::TestWithParam<std::string> {};

TEST_P(IndexedDatasetGolden, DocumentsAreThoseThatMegatronWrote) {
  const IndexedDataset data(kGoldenData + GetParam());
  const auto expected = nlohmann::json::parse(read_file(kGoldenData + GetParam() + ".json"));
  EXPECT_EQ(data.type(), TokenType::kInt32);
  EXPECT_EQ(read_all(data), expected["documents"].get<Corpus>());
}

TEST_P(IndexedDatasetGolden, WritingThemAgainGivesMegatronsBytes) {
  const Folder folder;
  write_corpus(folder / "copy", TokenType::kInt32, read_all(IndexedDataset(kGoldenData + GetParam())));
  EXPECT_EQ(read_file(folder / "copy.bin"), read_file(kGoldenData + GetParam() + ".bin"));
  EXPECT_EQ(read_file(folder / "copy.idx"), read_file(kGoldenData + GetParam() + ".idx"));
}

INSTANTIATE_TEST_SUITE_P(Files, IndexedDatasetGolden, ::testing::Values("tokens", "multi"));

TEST(IndexedDataset, EveryTokenTypeIsReadAsItWasWritten) {
  const Folder folder;
  for (const TokenType type : {TokenType::kUint8, TokenType::kInt8, TokenType::kInt16, TokenType::kInt32,
                               TokenType::kInt64, TokenType::kFloat64, TokenType::kFloat32, TokenType::kUint16}) {
    const Corpus corpus = {{{0, 1, 127}, {}}, {}, {{5}}};
    write_corpus(folder / to_string(type), type, corpus);
    const IndexedDataset data(folder / to_string(type));
    EXPECT_EQ(data.type(), type);
    EXPECT_EQ(read_all(data), corpus) << to_string(type);
    EXPECT_EQ(data.tokens(), 4);
  }
}

TEST(IndexedDataset, LargestIdsOfEachTypeComeBackAndLargerOnesAreRefused) {
  const Folder folder;
  const std::vector<std::pair<TokenType, int64_t>> largest = {{TokenType::kUint8, 255},
                                                              {TokenType::kInt8, 127},
                                                              {TokenType::kInt16, 32767},
                                                              {TokenType::kUint16, 65535},
                                                              {TokenType::kInt32, 2147483647},
                                                              {TokenType::kFloat32, int64_t{1} << 24},
                                                              {TokenType::kFloat64, int64_t{1} << 53}};
  for (const auto& [type, id] : largest) {
    write_corpus(folder / "largest", type, {{{id}}});
    EXPECT_EQ(read_all(IndexedDataset(folder / "largest")), (Corpus{{{id}}}));
    IndexedWriter writer(folder / "larger", type);
    const std::vector<int64_t> larger = {id + 1};
    EXPECT_THAT(config_error([&] { writer.add_sequence(larger); }), HasSubstr("does not fit")) << to_string(type);
  }
}

TEST(IndexedDataset, MegatronsChoiceOfTypeForAVocabulary) {
  EXPECT_EQ(token_type_for(65499), TokenType::kUint16);
  EXPECT_EQ(token_type_for(65500), TokenType::kInt32);
  EXPECT_EQ(token_type_for(0), TokenType::kInt32);
}

TEST(IndexedDataset, NothingStandsUnderTheFinalNameBeforeFinish) {
  const Folder folder;
  {
    IndexedWriter writer(folder / "data", TokenType::kInt32);
    writer.add_sequence(std::vector<int64_t>{1, 2, 3});
    EXPECT_FALSE(std::filesystem::exists(folder / "data.bin"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(IndexedDataset, AppendedDataSetsFollowEachOther) {
  const Folder folder;
  IndexedWriter writer(folder / "both", TokenType::kInt32);
  writer.append(IndexedDataset(kGoldenData + "multi"));
  writer.append(IndexedDataset(kGoldenData + "tokens"));
  writer.finish();
  Corpus expected = read_all(IndexedDataset(kGoldenData + "multi"));
  for (auto& document : read_all(IndexedDataset(kGoldenData + "tokens"))) expected.push_back(document);
  EXPECT_EQ(read_all(IndexedDataset(folder / "both")), expected);
}

TEST(IndexedDataset, ModesOfMultimodalDataAreAcceptedAndOtherBytesAreNot) {
  const Folder folder;
  const std::string idx = read_file(kGoldenData + "multi.idx");
  write_file(folder / "data.bin", read_file(kGoldenData + "multi.bin"));
  const int64_t sequences = IndexedDataset(kGoldenData + "multi").size();
  write_file(folder / "data.idx", idx + std::string(static_cast<size_t>(sequences), '\0'));
  EXPECT_EQ(IndexedDataset(folder / "data").size(), sequences);
  write_file(folder / "data.idx", idx + "x");
  EXPECT_THAT(config_error([&] { IndexedDataset(folder / "data"); }), HasSubstr("unexpected bytes after"));
}

TEST(IndexedDataset, WhatContradictsItselfIsRefusedWithAReason) {
  const Folder folder;
  const std::string idx = read_file(kGoldenData + "multi.idx"), bin = read_file(kGoldenData + "multi.bin");
  const int64_t sequences = IndexedDataset(kGoldenData + "multi").size();
  const size_t offsets = 34 + 4 * static_cast<size_t>(sequences), starts = offsets + 8 * static_cast<size_t>(sequences);
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "truncated"},
      {idx.substr(0, 33), "truncated"},
      {idx.substr(0, idx.size() - 1), "truncated"},
      {replaced(idx, 0, uint8_t{88}), "MMIDIDX"},
      {replaced(idx, 9, uint64_t{2}), "version 2"},
      {replaced(idx, 17, uint8_t{0}), "token type 0"},
      {replaced(idx, 17, uint8_t{9}), "token type 9"},
      {replaced(idx, 17, uint8_t{5}), "int64"},  // twice the bytes of .bin
      {replaced(idx, 18, ~uint64_t{0}), "declares"},
      {replaced(idx, 18, uint64_t{1} << 62), "declares"},  // 12 times it overflows to 0
      {replaced(idx, 26, ~uint64_t{0}), "declares"},
      {replaced(idx, 26, uint64_t{1} << 61), "declares"},
      {replaced(idx, 34, int32_t{-1}), "length -1"},
      {replaced(idx, 34, std::numeric_limits<int32_t>::max()), "sequence 0"},
      {replaced(idx, offsets, int64_t{-4}), "byte -4"},
      {replaced(idx, offsets, kHuge), "sequence 0"},
      {replaced(idx, starts, int64_t{1}), "begin at 1"},
      {replaced(idx, starts + 8, kHuge), "document 1"},
      {replaced(idx, idx.size() - 8, sequences - 1), "number of sequences"},
  };
  write_file(folder / "bad.bin", bin);
  for (const auto& [bytes, reason] : cases) {
    write_file(folder / "bad.idx", bytes);
    const std::string said = config_error([&] { IndexedDataset(folder / "bad"); });
    EXPECT_THAT(said, HasSubstr(reason));
    EXPECT_THAT(said, HasSubstr(folder / "bad.idx"));
  }
}

TEST(IndexedDataset, ATruncatedBinIsRefused) {
  const Folder folder;
  write_file(folder / "bad.idx", read_file(kGoldenData + "tokens.idx"));
  const std::string bin = read_file(kGoldenData + "tokens.bin");
  for (const size_t size : {bin.size() - 1, size_t{0}}) {
    write_file(folder / "bad.bin", bin.substr(0, size));
    EXPECT_THAT(config_error([&] { IndexedDataset(folder / "bad"); }), HasSubstr("truncated or damaged"));
  }
  std::filesystem::remove(folder / "bad.bin");
  EXPECT_THAT(config_error([&] { IndexedDataset(folder / "bad"); }), HasSubstr("No such file"));
}

TEST(IndexedDataset, AFractionIsNoTokenId) {
  const Folder folder;
  write_corpus(folder / "data", TokenType::kFloat32, {{{1, 2}}});
  write_file(folder / "data.bin", replaced(read_file(folder / "data.bin"), 4, 2.5F));
  EXPECT_THAT(config_error([&] { read_all(IndexedDataset(folder / "data")); }),
              HasSubstr("position 1: 2.5 is not a token id"));
}

TEST(IndexedDataset, PlacesNameDocumentAndSequence) {
  const Folder folder;
  write_corpus(folder / "data", TokenType::kInt32, {{{1}}, {}, {{2}, {3}}});
  const IndexedDataset data(folder / "data");
  EXPECT_THAT(data.place(0), HasSubstr("data.bin, document 0"));
  EXPECT_THAT(data.place(2), HasSubstr("document 2, its sequence 1"));
}

// Deterministic mutation: whatever the bytes, opening either throws ConfigError or gives a data set that can be read
// completely.
TEST(IndexedDataset, NoMutationOfAnIndexDoesMoreThanBeRefused) {
  const Folder folder;
  const std::string good = read_file(kGoldenData + "multi.idx");
  write_file(folder / "fuzz.bin", read_file(kGoldenData + "multi.bin"));
  std::mt19937 random(7);
  int opened = 0, refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = good;
    for (size_t changes = 1 + random() % 3; changes > 0; --changes) {
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0: bytes[at] = static_cast<char>(random()); break;
        case 1: bytes[at] = static_cast<char>(bytes[at] ^ (1 << (random() % 8))); break;
        case 2: bytes.resize(at + 1); break;
        default: bytes.insert(at, 1 + random() % 9, static_cast<char>(random())); break;
      }
    }
    write_file(folder / "fuzz.idx", bytes);
    const std::string said = config_error([&] {
      read_all(IndexedDataset(folder / "fuzz"));
      ++opened;
    });
    refused += said.empty() ? 0 : 1;
  }
  EXPECT_EQ(opened + refused, 2000);
  EXPECT_GT(refused, 1000);
  EXPECT_GT(opened, 0);  // modes, and changes that cancel or only move a sequence
}

TEST(IndexedDatasetDeathTest, ACorpusThatIsCutWhileItIsMappedIsNamed) {
  const Folder folder;
  IndexedWriter writer(folder / "corpus", TokenType::kInt32);
  writer.add_sequence(std::vector<int64_t>(10'000, 7));
  writer.end_document();
  writer.finish();
  const IndexedDataset data(folder / "corpus");
  std::filesystem::resize_file(folder / "corpus.bin", 100);
  EXPECT_EXIT(read_sequence(data, 0), ::testing::ExitedWithCode(1), "corpus.bin: is now shorter than the 40000 bytes");
}

}  // namespace
}  // namespace concord
