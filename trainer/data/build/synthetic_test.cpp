#include "trainer/data/build/synthetic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "core/base/stable_hash.h"
#include "trainer/data/sources/indexed_dataset.h"
#include "trainer/data/testing/folder.h"

namespace concord {
namespace {

using testing::config_error;
using testing::Folder;
using ::testing::HasSubstr;
using testing::read_file;

std::vector<int64_t> tokens_of(const std::string& prefix) {
  const IndexedDataset data(prefix);
  std::vector<int64_t> ids(static_cast<size_t>(data.length(0)));
  data.read(0, 0, data.length(0), ids.data());
  return ids;
}

// Plug-in entropies of the text itself. With n tokens and c cells in use they are low by about (c - 1) / 2n (Miller),
// here 64 * 8 / 2e6 = 3e-4, and vary by about sqrt(var of -ln p / n) ~ 1e-3.
TEST(SyntheticCorpus, EntropiesAreThoseOfTheText) {
  const Folder folder;
  const SyntheticCorpus corpus = write_synthetic_corpus(folder / "a", 3, 1000000);
  const std::vector<int64_t> ids = tokens_of(folder / "a");
  ASSERT_EQ(ids.size(), 1000000U);
  std::map<int64_t, double> letters;
  std::map<std::pair<int64_t, int64_t>, double> pairs;
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    letters[ids[i]] += 1;
    pairs[{ids[i], ids[i + 1]}] += 1;
  }
  const double n = static_cast<double>(ids.size() - 1);
  double unigram = 0, rate = 0;
  for (const auto& [letter, count] : letters) unigram -= count / n * std::log(count / n);
  for (const auto& [pair, count] : pairs) rate -= count / n * std::log(count / letters[pair.first]);
  EXPECT_EQ(letters.size(), 64U);
  EXPECT_NEAR(corpus.unigram_entropy, unigram, 5e-3);
  EXPECT_NEAR(corpus.entropy_rate, rate, 5e-3);
  EXPECT_LT(corpus.entropy_rate + 1, corpus.unigram_entropy);  // context reduces the loss
  EXPECT_LT(corpus.unigram_entropy, std::log(64.0));
}

TEST(SyntheticCorpus, TheTextIsAFunctionOfTheSeed) {
  const Folder folder;
  write_synthetic_corpus(folder / "a", 3, 5000);
  write_synthetic_corpus(folder / "b", 3, 5000);
  write_synthetic_corpus(folder / "c", 4, 5000);
  EXPECT_EQ(read_file(folder / "a.bin"), read_file(folder / "b.bin"));
  EXPECT_NE(read_file(folder / "a.bin"), read_file(folder / "c.bin"));
}

TEST(SyntheticCorpus, ALongerTextBeginsWithTheShorterOne) {
  const Folder folder;
  write_synthetic_corpus(folder / "a", 3, 100);
  write_synthetic_corpus(folder / "b", 3, 200);
  EXPECT_EQ(read_file(folder / "b.bin").substr(0, 200), read_file(folder / "a.bin"));
}

TEST(SyntheticCorpus, ImpossibleSizesAndPlacesAreRefused) {
  const Folder folder;
  EXPECT_THAT(config_error([&] { write_synthetic_corpus(folder / "a", 1, 1); }), HasSubstr("1 tokens"));
  EXPECT_THAT(config_error([&] { write_synthetic_corpus(folder / "a", 1, int64_t{1} << 40); }), HasSubstr("2^31 - 1"));
  EXPECT_THAT(config_error([&] { write_synthetic_corpus(folder / "no/a", 1, 10); }), HasSubstr("cannot create"));
}

}  // namespace
}  // namespace concord
