#include "trainer/data/text/tokenizer_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>

#include "trainer/data/build/build.h"
#include "trainer/data/build/synthetic.h"
#include "trainer/data/testing/folder.h"
#include "trainer/data/text/tokenizer.h"
#include "trainer/data/text/tokenizer_process.h"

namespace concord {
namespace {

using testing::config_error;
using testing::Folder;
using testing::read_file;
using testing::write_file;

std::vector<std::string> names_of(const TokenizerFiles& files) {
  std::vector<std::string> names;
  for (const auto& [name, text] : files) names.push_back(name);
  return names;
}

TEST(TokenizerFiles, GoWithTheDataThatTheTokenizerMade) {
  const Folder folder;
  write_file(folder / "text.txt", "one\n\ntwo\n");
  build_data({.inputs = {folder / "text.txt"}, .output = folder / "corpus"}, [](const BuildProgress&) {});
  for (const char* name : {"corpus", "corpus.bin", "corpus.idx"}) {
    EXPECT_EQ(read_tokenizer_files(folder / name, "byte"), tokenizer_files("byte")) << name;
  }
  write_synthetic_corpus(folder / "letters", 1, 100);
  EXPECT_EQ(read_tokenizer_files(folder / "letters", "byte"), tokenizer_files("byte"));
  EXPECT_EQ(names_of(tokenizer_files("byte")), (std::vector<std::string>{"tokenizer.json", "tokenizer_config.json"}));
}

TEST(TokenizerFiles, AreThoseOfTheFolderAndNothingElseOfIt) {
  const Folder folder;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "model.safetensors", "tokenizers.py"}) {
    write_file(folder / name, name);
  }
  const TokenizerFiles expected = {{"tokenizer.json", "tokenizer.json"},
                                   {"tokenizer_config.json", "tokenizer_config.json"}};
  EXPECT_EQ(tokenizer_files(folder.path()), expected);
  EXPECT_EQ(tokenizer_files(folder / "tokenizer.json"), expected);
  EXPECT_EQ(tokenizer_files(folder / "model.safetensors"), (TokenizerFiles{{"tokenizer.json", "model.safetensors"}}));
}

TEST(TokenizerFiles, ThatCannotBeReadAreRefusedAndNotLeftOut) {
  const Folder folder;
  write_file(folder / "tokenizer.json", "{}");
  std::filesystem::create_directory(folder / "tokenizer_backup");
  EXPECT_EQ(names_of(tokenizer_files(folder.path())), (std::vector<std::string>{"tokenizer.json"}));
  ASSERT_EQ(::mkfifo((folder / "tokenizer_config.json").c_str(), 0600), 0);
  EXPECT_THAT(config_error([&] { tokenizer_files(folder.path()); }),
              ::testing::HasSubstr("tokenizer_config.json: is not a regular file but a pipe"));
}

TEST(TokenizerFiles, OfTextThatTrainingReadsItselfAreItsTokenizers) {
  const Folder folder;
  write_file(folder / "a.txt", "text");
  write_file(folder / "chats.jsonl", "\n{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}\n");
  write_file(folder / "ids.jsonl", "{\"input_ids\": [1, 2]}\n");
  EXPECT_EQ(read_tokenizer_files(folder / "a.txt", "byte"), tokenizer_files("byte"));
  EXPECT_EQ(read_tokenizer_files(folder / "chats.jsonl", "byte"), tokenizer_files("byte"));
  EXPECT_TRUE(read_tokenizer_files(folder / "ids.jsonl", "byte").empty()) << "nobody knows";
  EXPECT_TRUE(read_tokenizer_files(folder / "tokens", "byte").empty());
}

TEST(TokenizerFiles, OfBytesGiveTheSameIdsInHfsTokenizers) {
  const char* const python = std::getenv("CONCORD_PYTHON");
  const std::string check = std::string(python != nullptr ? python : "python3") + " -c 'import tokenizers' 2>/dev/null";
  if (std::system(check.c_str()) != 0)
    GTEST_SKIP() << "no Python with the module tokenizers (CONCORD_PYTHON names one)";
  const Folder folder;
  write_tokenizer_files(folder / "data", tokenizer_files("byte"));
  TokenizerProcess theirs(folder / "data.tokenizer");
  ByteTokenizer ours;
  std::string every;  // letter of two bytes and of one
  for (int code = 1; code < 0x80; ++code) every += static_cast<char>(code);
  for (int code = 0x80; code < 0x800; ++code)
    every += {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
  const std::vector<std::string_view> texts = {every, " two  spaces\r\n\ttab", "K\xc3\xb6ln \xf0\x9f\x98\x80", ""};
  EXPECT_EQ(theirs.encode(texts), ours.encode(texts));
  EXPECT_EQ(theirs.vocab_size(), ours.vocab_size());
  for (const std::string_view special : kSpecialTokens) {
    EXPECT_EQ(theirs.encode({special}).at(0), (std::vector<int64_t>{*ByteTokenizer::special(special)})) << special;
  }
  EXPECT_EQ(theirs.end_of_document(), ours.end_of_document());
  EXPECT_EQ(end_of_document(tokenizer_files("byte")), theirs.end_of_document());
}

}  // namespace
}  // namespace concord
