#include "trainer/data/sources/sample_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "trainer/data/sources/indexed_dataset.h"
#include "trainer/data/testing/folder.h"
#include "trainer/data/text/documents.h"
#include "trainer/data/text/tokenizer.h"
#include "trainer/data/token_batch.h"

namespace concord {
namespace {

using testing::config_error;
using testing::Folder;
using ::testing::HasSubstr;
using testing::read_file;
using testing::write_file;

constexpr int64_t kEnd = ByteTokenizer::kEndOfDocument;

std::string said_by_source(const DataArguments& arguments) {
  return config_error([&] { open_sample_source(arguments); });
}

// Builds a safetensors file of one or two int64 tensors by hand.
std::string safetensors(const std::string& shape, const std::vector<int64_t>& ids, const std::vector<int64_t>& labels,
                        const std::string& dtype = "I64") {
  const std::string bytes(reinterpret_cast<const char*>(ids.data()), ids.size() * 8);
  std::string header = R"({"input_ids":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":[0,)" +
                       std::to_string(bytes.size()) + "]}";
  if (!labels.empty()) {
    header += R"(,"labels":{"dtype":"I64","shape":)" + shape + R"(,"data_offsets":[)" + std::to_string(bytes.size()) +
              "," + std::to_string(2 * bytes.size()) + "]}";
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), 8);
  file.append(header).append(bytes);
  return file.append(reinterpret_cast<const char*>(labels.data()), labels.size() * 8);
}

TEST(SampleSource, RowsOfSafetensorsAreSamplesWithShiftedLabels) {
  const Folder folder;
  std::vector<int64_t> ids(12), labels = {-100, 1, 2, -100, 4, 5, 6, 7, 8, 9, 10, 11};
  std::iota(ids.begin(), ids.end(), 0);
  const std::string path = write_file(folder / "a.safetensors", safetensors("[2,2,3]", ids, labels));
  const auto source = open_sample_source({.path = path, .vocab_size = 12});
  ASSERT_EQ(source->size(), 4);
  EXPECT_EQ(source->length(0), 3);
  EXPECT_FALSE(source->is_shuffled());
  EXPECT_EQ(source->at(0).ids, (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(source->at(0).labels, (std::vector<int64_t>{1, 2, -100}));
  EXPECT_EQ(source->at(1).labels, (std::vector<int64_t>{4, 5, -100}));
}

TEST(SampleSource, SafetensorsWithoutLabelsLearnEverything) {
  const Folder folder;
  const std::string path = write_file(folder / "a.safetensors", safetensors("[1,3]", {7, 8, 9}, {}));
  EXPECT_EQ(open_sample_source({.path = path})->at(0).labels, (std::vector<int64_t>{8, 9, -100}));
}

TEST(SampleSource, BadSafetensorsAreRefused) {
  const Folder folder;
  const auto refused = [&](const std::string& bytes, DataArguments arguments = {}) {
    arguments.path = write_file(folder / "bad.safetensors", bytes);
    return said_by_source(arguments);
  };
  const std::string good = safetensors("[1,3]", {7, 8, 9}, {});
  EXPECT_THAT(refused(good, {.seq_length = 2}),
              HasSubstr("row 0: the sample has 3 tokens, more than the sequence length 2"));
  EXPECT_THAT(refused(good, {.vocab_size = 9}),
              HasSubstr("row 0, position 2: token id 9 is not in the vocabulary (0 to 8)"));
  EXPECT_THAT(refused(safetensors("[1,3]", {7, -1, 9}, {})), HasSubstr("token id -1"));
  EXPECT_THAT(refused(safetensors("[1,1]", {7}, {99}), {.vocab_size = 50}), HasSubstr("label 99"));
  EXPECT_THAT(refused(safetensors("[0,3]", {}, {})), HasSubstr("contains no samples"));
  EXPECT_THAT(refused(safetensors("[1,3]", {1, 2, 3}, {}, "F64")), HasSubstr("has dtype F64"));
  EXPECT_FALSE(refused(good.substr(0, good.size() - 1)).empty());
  std::string renamed = good;
  renamed.replace(renamed.find("input_ids"), 9, "output_id");
  EXPECT_THAT(refused(renamed), HasSubstr("input_ids"));
}

TEST(SampleSource, TextIsBytesWithAnEndAfterEachDocument) {
  const Folder folder;
  const std::string path = write_file(folder / "a.txt", "ab\nc\n\n\u00e9");
  const auto source = open_sample_source({.path = path, .seq_length = 3, .vocab_size = 257, .shuffle = false});
  ASSERT_EQ(source->size(), 2);  // ab\nc END C3 A9 END: eight tokens
  EXPECT_EQ(source->at(0).ids, (std::vector<int64_t>{'a', 'b', '\n'}));
  EXPECT_EQ(source->at(0).labels, (std::vector<int64_t>{'b', '\n', 'c'}));
  EXPECT_EQ(source->at(1).ids, (std::vector<int64_t>{'c', kEnd, 0xC3}));
  EXPECT_EQ(source->at(1).labels, (std::vector<int64_t>{kEnd, 0xC3, 0xA9}));
}

TEST(SampleSource, LinesOfTextAreDocuments) {
  const Folder folder;
  const std::string path = write_file(folder / "a.jsonl", "{\"text\": \"ab\"}\n\n{\"text\": \"c\"}\n");
  const auto source = open_sample_source({.path = path, .seq_length = 4, .shuffle = false});
  ASSERT_EQ(source->size(), 1);
  EXPECT_EQ(source->at(0).labels, (std::vector<int64_t>{'b', kEnd, 'c', kEnd}));
}

TEST(SampleSource, LinesOfTokensAndPairsAreSamples) {
  const Folder folder;
  const std::string path = write_file(folder / "a.jsonl",
                                      "{\"input_ids\": [1, 2, 3], \"labels\": [-100, 2, 3]}\n"
                                      "{\"prompt\": \"ask\", \"completion\": \"b\"}\n{\"input_ids\": [7]}\n");
  const auto source = open_sample_source({.path = path});
  ASSERT_EQ(source->size(), 3);
  EXPECT_EQ(source->at(0).labels, (std::vector<int64_t>{2, 3, -100}));
  EXPECT_EQ(source->at(1).ids, (std::vector<int64_t>{'a', 's', 'k', 'b', kEnd}));
  EXPECT_EQ(source->at(1).labels, (std::vector<int64_t>{-100, -100, 'b', kEnd, -100}));
  EXPECT_EQ(source->at(2).ids, (std::vector<int64_t>{7}));
}

TEST(SampleSource, LongSamplesAreCutAsAskedAndCounted) {
  const Folder folder;
  const std::string path = write_file(folder / "a.jsonl",
                                      "{\"input_ids\": [1, 2, 3, 4, 5], \"labels\": [-100, -100, -100, 4, 5]}\n"
                                      "{\"input_ids\": [6, 7, 8, 9], \"labels\": [6, 7, -100, -100]}\n"
                                      "{\"input_ids\": [1, 2, 3]}\n");
  const auto open = [&](Truncation truncation) {
    return open_sample_source({.path = path, .seq_length = 3, .cutoff_len = 3, .truncation = truncation});
  };
  const auto right = open(Truncation::right);  // the trained tokens of the first are cut off
  ASSERT_EQ(right->size(), 2);
  EXPECT_EQ(right->at(0).ids, (std::vector<int64_t>{6, 7, 8}));
  EXPECT_EQ(right->cut_text(), "1 cut to 3 tokens, 1 dropped of 3 samples");
  const auto left = open(Truncation::left);
  ASSERT_EQ(left->size(), 2) << "the second learns only a token that nothing predicts";
  EXPECT_EQ(left->at(0).ids, (std::vector<int64_t>{3, 4, 5}));
  EXPECT_EQ(left->at(0).labels, (std::vector<int64_t>{4, 5, -100}));
  EXPECT_EQ(open(Truncation::drop)->cut_text(), "2 dropped of 3 samples");
  const auto split = open(Truncation::split);  // pieces share a token; one of each has no trained tokens
  ASSERT_EQ(split->size(), 3);
  EXPECT_EQ(split->at(0).ids, (std::vector<int64_t>{3, 4, 5}));
  EXPECT_EQ(split->at(0).labels, (std::vector<int64_t>{4, 5, -100}));
  EXPECT_EQ(split->at(1).ids, (std::vector<int64_t>{6, 7, 8}));
  EXPECT_EQ(split->cut_text(), "2 split into 2 pieces of up to 3 tokens of 3 samples");
  EXPECT_EQ(open_sample_source({.path = path, .cutoff_len = 2, .truncation = Truncation::split})->cut_text(),
            "3 split into 5 pieces of up to 2 tokens of 3 samples");
  EXPECT_EQ(open_sample_source({.path = path, .cutoff_len = 5})->cut_text(), "");
  EXPECT_THAT(said_by_source({.path = path, .seq_length = 4}), HasSubstr("or cut such samples with cutoff_len"));
  EXPECT_THAT(said_by_source({.path = path, .cutoff_len = 2, .truncation = Truncation::drop}),
              HasSubstr("all 3 samples are longer than cutoff_len 2"));
}

// The contents of all samples; a source of documents is compared by the one sample that they make.
std::vector<std::vector<int64_t>> ids_of(const DataArguments& arguments) {
  const auto source = open_sample_source(arguments);
  std::vector<std::vector<int64_t>> ids;
  for (int64_t i = 0; i < source->size(); ++i) ids.push_back(source->at(i).ids);
  return ids;
}

TEST(SampleSource, MaxSamplesTakesTheFirstRecordsOfLinesPairsAndRows) {
  using Rows = std::vector<std::vector<int64_t>>;
  const Folder folder;
  const std::string lines =
      write_file(folder / "a.jsonl", "\n{\"input_ids\": [1, 2, 3]}\n \n{\"input_ids\": [4, 5]}\n{broken\n");
  EXPECT_EQ(ids_of({.path = lines, .max_samples = 2}), (Rows{{1, 2, 3}, {4, 5}}));
  EXPECT_EQ(ids_of({.path = lines, .max_samples = 1}), (Rows{{1, 2, 3}}));
  EXPECT_THAT(said_by_source({.path = lines, .max_samples = 3}), HasSubstr("line 5: is not JSON"));
  // A dropped record counts, and so does one that becomes several samples.
  EXPECT_EQ(ids_of({.path = lines, .max_samples = 2, .cutoff_len = 2, .truncation = Truncation::drop}), (Rows{{4, 5}}));
  EXPECT_EQ(ids_of({.path = lines, .max_samples = 1, .cutoff_len = 2, .truncation = Truncation::split}),
            (Rows{{1, 2}, {2, 3}}));
  const std::string pairs =
      write_file(folder / "pairs.jsonl",
                 "{\"prompt_input_ids\": [1], \"chosen_input_ids\": [2], \"rejected_input_ids\": [3]}\n{broken\n");
  EXPECT_EQ(ids_of({.path = pairs, .max_samples = 1, .pairs = true}), (Rows{{1, 2}, {1, 3}}));
  const std::string rows = write_file(folder / "a.safetensors", safetensors("[3,2]", {1, 2, 3, 4, 5, 6}, {}));
  EXPECT_EQ(ids_of({.path = rows, .max_samples = 2}), (Rows{{1, 2}, {3, 4}}));
  EXPECT_EQ(ids_of({.path = rows, .max_samples = 9}).size(), 3U);
  // Each source of a blend is limited, and data before it is split.
  EXPECT_EQ(ids_of({.blend = {rows, lines}, .max_samples = 1, .shuffle = false}), (Rows{{1, 2}, {1, 2, 3}}));
  EXPECT_EQ(ids_of({.path = rows, .split = {"1", "1"}, .part = DataPart::valid, .max_samples = 2}), (Rows{{3, 4}}));
}

TEST(SampleSource, MaxSamplesTakesTheFirstDocumentsOfTextMegatronAndCachedData) {
  using Rows = std::vector<std::vector<int64_t>>;
  const Folder folder;
  const auto first = [&](const std::string& path, int64_t most, const std::string& cache = "") {
    return ids_of({.path = path, .cache = cache, .max_samples = most, .seq_length = 3, .shuffle = false});
  };
  const Rows two = {{'a', 'b', kEnd}};  // and one token that is only predicted
  const std::string text = write_file(folder / "a.txt", "ab\n\nc\n\nde\n");
  EXPECT_EQ(first(text, 2), two);
  EXPECT_EQ(first(text, 0).size(), 2U);
  const std::string lines = "{\"text\": \"ab\"}\n{\"text\": \"c\"}\n{\"text\": \"de\"}\n";
  EXPECT_EQ(first(write_file(folder / "a.jsonl", lines), 2), two);
  IndexedWriter writer(folder / "a", TokenType::kInt32);
  for (const std::vector<int64_t>& ids : std::vector<std::vector<int64_t>>{{1, 2, 3}, {4}, {5, 6, 7, 8}}) {
    writer.add_sequence(ids);
    writer.end_document();
  }
  writer.finish();
  EXPECT_EQ(first(folder / "a", 2), (Rows{{1, 2, 3}}));
  EXPECT_EQ(first(folder / "a", 0), (Rows{{1, 2, 3}, {4, 5, 6}}));
  // Several files are one data set. Other numbers read the same entry of the cache.
  std::filesystem::create_directory(folder / "files");
  write_file(folder / "files/1.jsonl", "{\"text\": \"ab\"}\n");
  write_file(folder / "files/2.jsonl", "{\"text\": \"c\"}\n{\"text\": \"de\"}\n");
  EXPECT_EQ(first(folder / "files", 2, folder / "cache"), two);
  EXPECT_EQ(first(folder / "files", 0, folder / "cache").size(), 2U);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / "cache/tokens"), {}), 2) << "an entry, its lock";
}

TEST(SampleSource, BadJsonLinesAreRefusedWithTheirNumber) {
  const Folder folder;
  const auto refused = [&](const std::string& bytes, DataArguments arguments = {}) {
    arguments.path = write_file(folder / "bad.jsonl", bytes);
    return said_by_source(arguments);
  };
  const std::string good = "{\"input_ids\": [1, 2, 3]}\n";
  EXPECT_THAT(refused(good + "\n{broken\n"), HasSubstr("bad.jsonl, line 3: is not JSON"));
  EXPECT_THAT(refused(good + "{\"text\": \"x\"}\n"), HasSubstr("line 2: has \"text\", but the previous lines"));
  EXPECT_THAT(refused(good, {.seq_length = 2}), HasSubstr("line 1: the sample has 3 tokens"));
  EXPECT_THAT(refused(good, {.vocab_size = 3}), HasSubstr("line 1, position 2: token id 3"));
  EXPECT_THAT(refused("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}"),
              HasSubstr("line 1: the byte tokenizer has no chat template"));
  EXPECT_THAT(refused("{\"text\": \"x\"}", {.tokenizer = "t.json", .seq_length = 1}),
              HasSubstr("concord data build --input"));
  EXPECT_THAT(refused("{\"text\": \"x\"}", {.seq_length = 64}),
              HasSubstr("2 tokens, but one sample of sequence length 64 needs 65"));
  EXPECT_THAT(refused(""), HasSubstr("contains no samples"));
  EXPECT_THAT(refused("\n\n"), HasSubstr("contains no samples"));
}

TEST(SampleSource, BadTextIsRefused) {
  const Folder folder;
  write_file(folder / "bad.txt", "fine\n\xFF\n");
  EXPECT_THAT(said_by_source({.path = folder / "bad.txt", .seq_length = 1}),
              HasSubstr("bad.txt, line 2: the byte 0xFF is not valid UTF-8"));
  write_file(folder / "empty.txt", "\n \n");
  EXPECT_THAT(said_by_source({.path = folder / "empty.txt", .seq_length = 1}), HasSubstr("contains no text"));
  EXPECT_THAT(said_by_source({.path = folder / "empty.txt", .tokenizer = "x"}), HasSubstr("concord data build"));
  EXPECT_THAT(said_by_source({.path = folder / "empty.txt", .tokenizer = ""}), HasSubstr("--tokenizer byte"));
  write_file(folder / "zero.txt", std::string("fine\n\n\0", 7));
  EXPECT_THAT(said_by_source({.path = folder / "zero.txt", .seq_length = 1}),
              HasSubstr("zero.txt, line 3: contains a zero byte"));
  write_file(folder / "a.txt", "text");
  EXPECT_THAT(said_by_source({.path = folder / "a.txt"}), HasSubstr("sequence length is 0"));
  EXPECT_THAT(said_by_source({.path = folder / "a.txt", .seq_length = 2, .vocab_size = 256}),
              HasSubstr("line 1 (document 0), position 4: token id 256"));
}

TEST(SampleSource, WhatIsNotThereIsNamed) {
  const Folder folder;
  EXPECT_THAT(said_by_source({}), HasSubstr("no data; --train_data"));
  EXPECT_THAT(said_by_source({.path = folder / "nothing"}), HasSubstr(folder / "nothing.idx does not exist"));
  EXPECT_THAT(said_by_source({.path = folder / "nothing.txt"}), HasSubstr("No such file"));
  EXPECT_THAT(said_by_source({.path = folder / "nothing.jsonl"}), HasSubstr("No such file"));
  EXPECT_THAT(said_by_source({.path = folder / "nothing.safetensors"}), HasSubstr("No such file"));
  std::filesystem::create_directory(folder / "folder.txt");
  EXPECT_THAT(said_by_source({.path = folder / "folder.txt"}), HasSubstr("the folder has no file that ends in .txt"));
  EXPECT_THAT(said_by_source({.path = folder / "*.jsonl"}), HasSubstr("no file matches"));
  write_file(folder / "folder.txt/a.jsonl", "{\"input_ids\": [1]}\n");
  EXPECT_THAT(said_by_source({.path = folder / "folder.txt"}), HasSubstr("data_cache_path that is not none"));
}

TEST(SampleSource, AMegatronPrefixIsFoundByEitherOfItsFiles) {
  const std::string prefix = CONCORD_GOLDEN "/data/tokens";
  for (const char* ending : {"", ".bin", ".idx"}) {
    EXPECT_EQ(open_sample_source({.path = prefix + ending, .seq_length = 32})->size(), 47) << ending;
  }
}

TEST(SampleSource, IdsBeyondTheVocabularyAreNamedByFileDocumentAndPosition) {
  const Folder folder;
  IndexedWriter writer(folder / "a", TokenType::kInt32);
  for (const std::vector<int64_t>& ids : std::vector<std::vector<int64_t>>{{1, 2, 3}, {4, 99}}) {
    writer.add_sequence(ids);
    writer.end_document();
  }
  writer.finish();
  EXPECT_THAT(said_by_source({.path = folder / "a", .seq_length = 2, .vocab_size = 99}),
              HasSubstr("a.bin, document 1, position 1: token id 99 is not less than the vocabulary size 99"));
  EXPECT_EQ(said_by_source({.path = folder / "a", .seq_length = 2, .vocab_size = 100}), "");
}

// One token, one label and one boundary each; the file's name does not matter.
TEST(SampleSource, TheIdentityOfSamplesIsThatOfTheirContents) {
  const Folder folder;
  const auto identity = [&](const std::string& name, const std::string& lines) {
    return open_sample_source({.path = write_file(folder / name, lines), .seq_length = 4})->identity();
  };
  const std::string lines = "{\"input_ids\": [1, 2, 3]}\n{\"input_ids\": [4, 5]}\n";
  const DataIdentity first = identity("a.jsonl", lines);
  EXPECT_EQ(identity("moved.jsonl", lines), first);
  EXPECT_NE(identity("a.jsonl", "{\"input_ids\": [1, 2, 3]}\n{\"input_ids\": [4, 6]}\n"), first);
  EXPECT_NE(identity("a.jsonl", "{\"input_ids\": [1, 2]}\n{\"input_ids\": [3, 4, 5]}\n"), first);
  EXPECT_NE(identity("a.jsonl", "{\"input_ids\": [1, 2, 3], \"labels\": [1, 2, -100]}\n{\"input_ids\": [4, 5]}\n"),
            first);
  EXPECT_NE(identity("a.txt", "some text that is long enough"), identity("b.txt", "some text that is lOng enough"));
}

// If the identities of two runs of different length are equal, so are all samples; and they often are equal.
TEST(SampleSource, AMegatronCorpusHasTheSameOrderForMoreSamplesWhereItsIdentityIsTheSame) {
  const auto open = [](int64_t wanted) {
    return open_sample_source({.path = CONCORD_GOLDEN "/data/tokens", .seq_length = 32, .samples_wanted = wanted});
  };
  int same = 0, different = 0;
  for (int64_t wanted = 5; wanted < 150; wanted += 12) {
    const auto shorter = open(wanted);
    for (int64_t more = wanted + 12; more < 150; more += 12) {
      const auto longer = open(more);
      if (shorter->identity() != longer->identity()) {
        ++different;
        continue;
      }
      ++same;
      ASSERT_EQ(shorter->size(), longer->size());
      for (int64_t i = 0; i < shorter->size(); ++i) EXPECT_EQ(shorter->at(i).ids, longer->at(i).ids) << wanted << more;
    }
  }
  EXPECT_GT(same, 3);
  EXPECT_GT(different, 3);  // a different number of epochs, or the last one shuffled separately
}

// The identity of a corpus that is too large to be read covers only parts of it, but all lengths.
TEST(SampleSource, ALargeCorpusIsToldFromOthersWithoutReadingItAll) {
  const Folder folder;
  const auto hash = [&](int64_t documents, int64_t first_token, int64_t most) {
    IndexedWriter writer(folder / "a", TokenType::kInt32);
    for (int64_t i = 0; i < documents; ++i) {
      writer.add_sequence(std::vector<int64_t>(600, i == 0 ? first_token : 7));
      writer.end_document();
    }
    writer.finish();
    return content_hash(IndexedDataset(folder / "a"), most);
  };
  for (const int64_t documents : {1, 2, 1000}) {
    const uint64_t first = hash(documents, 7, 100);
    EXPECT_EQ(hash(documents, 7, 100), first);
    EXPECT_NE(hash(documents, 8, 100), first);
    EXPECT_NE(hash(documents + 1, 7, 100), first);
  }
}

}  // namespace
}  // namespace concord
