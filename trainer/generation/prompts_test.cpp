#include "trainer/generation/prompts.h"

#include <gmock/gmock.h>

#include <fstream>

#include "core/base/config_error.h"
#include "tests/temporary_folder.h"

namespace concord {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class Prompts : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }

  tests::TemporaryFolder folder_;
};

TEST_F(Prompts, AreOnePerLine) {
  const auto texts = read_prompts(write("a.txt", "one\n\n two\n"), false);
  ASSERT_EQ(texts.size(), 2U);
  EXPECT_EQ(texts[1].text, " two");
  const auto mixed =
      read_prompts(write("a.jsonl",
                         "{\"prompt\": \"hi\"}\n{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n"
                         "{\"input_ids\": [3, 4]}\n"),
                   true);
  ASSERT_EQ(mixed.size(), 3U);
  EXPECT_EQ(mixed[0].text, R"({"messages":[{"content":"hi","role":"user"}]})") << "with --chat a user says it";
  EXPECT_EQ(mixed[1].kind, Prompt::Kind::chat);
  EXPECT_THAT(mixed[2].ids, ElementsAre(3, 4));
}

TEST_F(Prompts, ThatCannotBeReadAreNamedWithTheirLine) {
  const auto refused = [&](const std::string& text, const char* words) {
    const std::string path = write("bad.jsonl", text);
    EXPECT_THAT([&] { read_prompts(path, false); }, ThrowsMessage<ConfigError>(HasSubstr(words))) << text;
  };
  refused("{\"prompt\": \"a\"}\n{\"prompt\": 5}\n", "bad.jsonl, line 2: must be {\"prompt\"");
  refused("[1]\n", "line 1: must be");
  refused("{", "line 1: is not JSON");
  refused("\n\n", "contains no prompts");
}

TEST_F(Prompts, NeedATokenizerUnlessTheyAreTokens) {
  EXPECT_THAT(encode_prompts({{Prompt::Kind::ids, "", {1, 2}}}, nullptr), ElementsAre(ElementsAre(1, 2)));
  EXPECT_THAT([&] { encode_prompts({make_prompt("a", false)}, nullptr); },
              ThrowsMessage<ConfigError>(HasSubstr("prompt 1 is text, but the model's folder has no tokenizer.json")));
  ByteTokenizer bytes;
  EXPECT_THAT(encode_prompts({make_prompt("ab", false)}, &bytes), ElementsAre(ElementsAre('a', 'b')));
  EXPECT_THAT([&] { encode_prompts({make_prompt("a", false), make_prompt("a", true)}, &bytes); },
              ThrowsMessage<ConfigError>(HasSubstr("prompt 2: the byte tokenizer has no chat template")));
}

TEST_F(Prompts, EndAsTheModelSaysElseAsTheTokenizerDoes) {
  const ByteTokenizer bytes;
  EXPECT_THAT(end_tokens(folder_.path(), nullptr), ElementsAre());
  EXPECT_THAT(end_tokens(folder_.path(), &bytes), ElementsAre(256));
  write("config.json", R"({"eos_token_id": 7})");
  EXPECT_THAT(end_tokens(folder_.path(), &bytes), ElementsAre(7));
  write("generation_config.json", R"({"eos_token_id": [8, 9]})");
  EXPECT_THAT(end_tokens(folder_.path(), &bytes), ElementsAre(8, 9));
  write("generation_config.json", R"({"eos_token_id": null})");
  EXPECT_THAT(end_tokens(folder_.path(), &bytes), ElementsAre(7));
}

TEST_F(Prompts, AStreamShowsWholeCharacters) {
  ByteTokenizer bytes;
  IncrementalDetokenizer stream(bytes);
  EXPECT_EQ(stream.add('a'), "a");
  EXPECT_EQ(stream.add(0xC3), "");
  EXPECT_EQ(stream.add(0xA9), "\u00e9");
  EXPECT_EQ(stream.add(0xE2), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
}

}  // namespace
}  // namespace concord
