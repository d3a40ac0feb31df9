#include "trainer/data/text/records.h"

#include <gmock/gmock.h>

#include <cstdlib>

#include "trainer/data/sources/sample_source.h"
#include "trainer/data/testing/folder.h"

namespace concord {
namespace {

using ::testing::AllOf;
using testing::config_error;
using testing::Folder;
using ::testing::HasSubstr;
using testing::write_file;

TEST(Records, AJsonListIsReadAsLines) {
  const Folder folder;
  const std::string path = write_file(folder / "a.json", R"([{"text": "é\n"},
    {"input_ids": [1]}])");
  EXPECT_EQ(read_records(path), "{\"text\": \"é\\n\"}\n{\"input_ids\": [1]}\n");
  EXPECT_EQ(read_records(write_file(folder / "none.json", "[]")), "");
}

TEST(Records, TrainingReadsThemAndNamesTheirPlace) {
  const Folder folder;
  write_file(folder / "a.json", R"([{"input_ids": [1, 2]}, {"prompt": "a", "completion": "b"}])");
  const auto source = open_sample_source({.path = folder / "a.json"});
  ASSERT_EQ(source->size(), 2);
  EXPECT_EQ(source->at(1).ids, (std::vector<int64_t>{'a', 'b', 256}));
  write_file(folder / "bad.json", R"([{"input_ids": [1, 2]}, {"input_ids": []}])");
  EXPECT_THAT(config_error([&] { open_sample_source({.path = folder / "bad.json"}); }),
              HasSubstr("bad.json, line 2: \"input_ids\" is empty"));
}

TEST(Records, CompressedLinesAreTheSameAsLines) {
  const Folder folder;
  const std::string path = write_file(folder / "a.jsonl", "{\"input_ids\": [1, 2]}\n\n{\"input_ids\": [3]}\n");
  if (std::system(("gzip " + path).c_str()) != 0) GTEST_SKIP() << "no gzip here";
  EXPECT_EQ(read_records(path + ".gz"), "{\"input_ids\": [1, 2]}\n{\"input_ids\": [3]}\n");
}

TEST(Records, WhatCannotBeReadIsNamedWithTheReason) {
  const Folder folder;
  const auto refused = [&](const std::string& name, const std::string& bytes) {
    const std::string path = write_file(folder / name, bytes);
    return config_error([&] { read_records(path); });
  };
  EXPECT_THAT(refused("a.json", "{\"a\": 1}"), AllOf(HasSubstr("a.json: "), HasSubstr("is not a JSON list")));
  EXPECT_THAT(refused("a.json", "[1, "), HasSubstr("a.json: "));
  EXPECT_THAT(refused("a.jsonl.gz", "no gzip"), HasSubstr("a.jsonl.gz: "));
  EXPECT_THAT(config_error([&] { read_records(folder / "missing.json"); }), HasSubstr("missing.json"));
  write_file(folder / "pyarrow.py", "raise ImportError('not installed')");
  ::setenv("PYTHONPATH", folder.path().c_str(), 1);
  EXPECT_THAT(refused("a.parquet", "PAR1"), AllOf(HasSubstr("a.parquet: "), HasSubstr("pip install pyarrow")));
  EXPECT_THAT(refused("a.arrow", "ARROW1"), HasSubstr("has no module pyarrow (not installed)"));
  ::unsetenv("PYTHONPATH");
}

}  // namespace
}  // namespace concord
