#include "trainer/data/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "trainer/data/testing/folder.h"
#include "trainer/data/text/records.h"
#include "trainer/data/text/tokenizer_pipe.h"
#include "trainer/data/text/tokenizer_process.h"

namespace concord {
namespace {

using nlohmann::json;
using testing::config_error;
using testing::Folder;
using ::testing::HasSubstr;
using testing::read_file;
using testing::write_file;

// Sets an environment variable for its lifetime.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    ::setenv(name, value.c_str(), 1);
  }
  ~Environment() { old_ ? ::setenv(name_, old_->c_str(), 1) : ::unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
  std::optional<std::string> old_;
};

// A module named like HF's: ids are code points plus one, '#' is special and ends documents.
constexpr const char* kStandIn = R"(
class Encoding:
    def __init__(self, ids): self.ids = ids
class Tokenizer:
    encode_special_tokens = False
    @staticmethod
    def from_str(text):
        if 'bad' in text: raise ValueError('no tokenizer')
        return Tokenizer()
    def no_truncation(self): pass
    def no_padding(self): pass
    def get_vocab(self, with_added_tokens): return {'a': 3, 'b': 1000000}
    def token_to_id(self, name): return {'</s>': 9}.get(name)
    def encode_batch(self, texts, add_special_tokens):
        if 'die' in texts: raise SystemExit(3)
        if 'fill' in texts: bytearray(4 << 30)
        front = [5] if add_special_tokens else []
        return [Encoding(front + [0 if c == '#' else ord(c) + 1 for c in text]) for text in texts]
    def decode(self, ids, skip_special_tokens):
        assert skip_special_tokens
        return ''.join(chr(id - 1) for id in ids)
)";

class TokenizerProcessTest : public ::testing::Test {
 protected:
  TokenizerProcessTest() : path_("PYTHONPATH", folder_.path()) {
    write_file(folder_ / "tokenizers.py", kStandIn);
    write_file(folder_ / "tokenizer.json", "{}");
  }

  Folder folder_;
  Environment path_;
};

TEST(ByteTokenizer, BytesAreTheirOwnIdsAndSpecialsFollow) {
  ByteTokenizer tokenizer;
  EXPECT_EQ(tokenizer.encode({"a\xC3\xA9", "", "<|endoftext|>"}).at(0), (std::vector<int64_t>{'a', 0xC3, 0xA9}));
  EXPECT_EQ(tokenizer.encode({"<|endoftext|>"}).at(0).size(), 13U);
  EXPECT_EQ(tokenizer.special("<|endoftext|>"), std::optional<int64_t>(ByteTokenizer::kEndOfDocument));
  EXPECT_EQ(tokenizer.special("<|pad|>"), std::optional<int64_t>(ByteTokenizer::kPad));
  EXPECT_EQ(tokenizer.special("<|eot_id|>"), std::optional<int64_t>(ByteTokenizer::kVocabSize - 1));
  EXPECT_EQ(tokenizer.special("</s>"), std::nullopt);
}

TEST(ByteTokenizer, TextComesBackWithoutSpecialsAndHalfCharacters) {
  ByteTokenizer tokenizer;
  EXPECT_EQ(tokenizer.decode({'a', 0xC3, 0xA9, 256, 'b', 0xC3}), "a\u00e9b\uFFFD");
}

TEST_F(TokenizerProcessTest, TextsComeBackAsTheIdsOfTheModule) {
  TokenizerProcess tokenizer(folder_.path());
  EXPECT_EQ(tokenizer.vocab_size(), 1000001);
  EXPECT_EQ(tokenizer.end_of_document(), std::optional<int64_t>(9));
  EXPECT_EQ(tokenizer.encode({"a#\n", "", "\u6771"}), (std::vector<std::vector<int64_t>>{{98, 0, 11}, {}, {0x6772}}));
  EXPECT_EQ(tokenizer.encode_prompts({"a"}), (std::vector<std::vector<int64_t>>{{5, 98}}));
  EXPECT_TRUE(tokenizer.encode({}).empty());
  EXPECT_EQ(tokenizer.decode({98, 0x6772}), "a\u6771");
}

TEST_F(TokenizerProcessTest, RequestsAndAnswersLargerThanAPipeGoThrough) {
  TokenizerProcess tokenizer(folder_ / "tokenizer.json");
  const std::string large(3000000, 'x');
  EXPECT_EQ(tokenizer.encode({large, "y"}),
            (std::vector<std::vector<int64_t>>{std::vector<int64_t>(large.size(), 121), {122}}));
}

TEST_F(TokenizerProcessTest, WhatIsMissingIsNamedWithWhatToDo) {
  EXPECT_THAT(config_error([&] { TokenizerProcess(folder_ / "nothing"); }), HasSubstr("not found; use 'byte'"));
  write_file(folder_ / "bad.json", "bad");
  EXPECT_THAT(config_error([&] { TokenizerProcess(folder_ / "bad.json"); }),
              HasSubstr("cannot read " + folder_ / "bad.json" + ": no tokenizer"));
  {
    const Environment python("CONCORD_PYTHON", folder_ / "no-python");
    EXPECT_THAT(config_error([&] { TokenizerProcess{folder_.path()}; }), HasSubstr("cannot start"));
  }
  write_file(folder_ / "tokenizers.py", "raise ImportError('not installed')");
  EXPECT_THAT(config_error([&] { TokenizerProcess{folder_.path()}; }),
              HasSubstr("has no module tokenizers (not installed); install it"));
}

TEST_F(TokenizerProcessTest, AConversationWithoutATemplateIsRefusedWithWhatToDo) {
  TokenizerProcess tokenizer(folder_.path());
  const std::string chat = R"({"messages": [{"role": "user", "content": "a"}]})";
  EXPECT_THAT(config_error([&] { tokenizer.encode_samples({chat}); }), HasSubstr("give one with --chat_template"));
  EXPECT_THAT(config_error([&] { tokenizer.encode_chat_prompts({chat}); }), HasSubstr("has no chat template"));
  EXPECT_EQ(tokenizer.encode({"a"}).at(0).size(), 1U) << "and the process goes on";
  EXPECT_THAT(config_error([&] { make_tokenizer(folder_.path(), folder_ / "none.jinja"); }), HasSubstr("none.jinja"));
}

TEST_F(TokenizerProcessTest, AProcessThatEndsIsAnErrorAndNotAHang) {
  TokenizerProcess tokenizer(folder_.path());
  EXPECT_THROW(tokenizer.encode({"die"}), std::runtime_error);
  EXPECT_THROW(tokenizer.encode({"more"}), std::runtime_error);
}

TEST_F(TokenizerProcessTest, AFileThatIsNotARegularOneIsRefusedWithoutWaitingForIt) {
  const Environment timeout("CONCORD_TOKENIZER_TIMEOUT", "20");  // would end a wait for the pipe's writer
  const std::string chat = R"({"messages": [{"role": "user", "content": "a"}]})";
  ASSERT_EQ(::mkfifo((folder_ / "chat_template.jinja").c_str(), 0600), 0);
  EXPECT_THAT(config_error([&] { TokenizerProcess(folder_.path()).encode_chat_prompts({chat}); }),
              HasSubstr("chat_template.jinja: is not a regular file"));
  ASSERT_EQ(::mkfifo((folder_ / "tokenizer_config.json").c_str(), 0600), 0);
  EXPECT_THAT(config_error([&] { TokenizerProcess{folder_.path()}; }),
              HasSubstr("tokenizer_config.json: is not a regular file"));
  std::filesystem::remove(folder_ / "tokenizer.json");
  ASSERT_EQ(::mkfifo((folder_ / "tokenizer.json").c_str(), 0600), 0);
  EXPECT_THAT(config_error([&] { TokenizerProcess{folder_.path()}; }), HasSubstr("is not a regular file but a pipe"));
}

TEST_F(TokenizerProcessTest, AFileBeyondTheLimitIsRefused) {
  std::filesystem::resize_file(folder_ / "tokenizer.json", (256 << 20) + 1);  // a sparse file
  EXPECT_THAT(config_error([&] { TokenizerProcess{folder_.path()}; }),
              HasSubstr("has 268435457 bytes; the limit for tokenizer files is 268435456"));
}

// The stand-in allocates 4 GiB without accessing them.
TEST_F(TokenizerProcessTest, MemoryBeyondTheLimitIsAnErrorThatNamesIt) {
  const Environment memory("CONCORD_TOKENIZER_MEMORY", "2");
  TokenizerProcess tokenizer(folder_.path());
  EXPECT_EQ(tokenizer.encode({"a"}).at(0).size(), 1U);
  EXPECT_THAT([&] { tokenizer.encode({"fill"}); },
              ::testing::ThrowsMessage<std::runtime_error>(HasSubstr("increase CONCORD_TOKENIZER_MEMORY")));
}

// Every helper is started this way; each entry of PYTHONPATH except one names the working folder.
TEST_F(TokenizerProcessTest, PythonRunsNothingFromTheWorkingFolder) {
  const Folder working;
  for (const char* module : {"sitecustomize.py", "usercustomize.py", "json.py", "tokenizers.py"})
    write_file(working / module, "open('" + working / "ran" + "', 'w')\nraise SystemExit('from the working folder')");
  const Environment path("PYTHONPATH", ":" + folder_.path() + "::.:");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(working.path());
  TokenizerProcess tokenizer(folder_.path());
  EXPECT_EQ(tokenizer.encode({"a"}), (std::vector<std::vector<int64_t>>{{98}}));
  EXPECT_EQ(read_records(write_file(working / "a.json", "[1]")), "1\n");
  std::filesystem::current_path(before);
  EXPECT_FALSE(std::filesystem::exists(working / "ran"));
}

// Sends nothing, and does not exit at the end of its input either.
TEST_F(TokenizerProcessTest, ASilentProcessIsAnErrorAndNotAHang) {
  const std::string silent = folder_ / "silent";
  write_file(silent, "#!/bin/sh\nexec sleep 1000\n");
  std::filesystem::permissions(silent, std::filesystem::perms::owner_all);
  const Environment python("CONCORD_PYTHON", silent), timeout("CONCORD_TOKENIZER_TIMEOUT", "0.05");
  try {
    TokenizerProcess{folder_.path()};
    FAIL() << "it has greeted";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("has not answered for 0.05 s"));
  }
}

// The other side of a pipe, which has sent |said| and sends nothing more.
class SaidOnce {
 public:
  explicit SaidOnce(const std::string& said) {
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, asked_) != 0 || ::socketpair(AF_UNIX, SOCK_STREAM, 0, said_) != 0 ||
        ::write(said_[1], said.data(), said.size()) != static_cast<ssize_t>(said.size()))
      throw std::runtime_error("no sockets");
  }
  ~SaidOnce() {
    ::close(asked_[1]);
    ::close(said_[1]);
  }
  SaidOnce(const SaidOnce&) = delete;
  SaidOnce& operator=(const SaidOnce&) = delete;

  std::string error_of_encode() {
    TokenizerPipe pipe(UniqueFd{asked_[0]}, UniqueFd{said_[0]}, "it", std::chrono::milliseconds(20));
    EXPECT_EQ(pipe.read_greeting().vocab_size, 300);
    try {
      pipe.ids_of(TokenizerPipe::Kind::document, {"a"});
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "no error";
  }

 private:
  int asked_[2] = {-1, -1}, said_[2] = {-1, -1};
};

constexpr const char* kGreeting = "{\"vocab_size\": 300, \"end_of_document\": null, \"end_of_text\": null}\n";

TEST(TokenizerPipe, AnAnswerThatNeverComesIsAnError) {
  EXPECT_THAT(SaidOnce(kGreeting).error_of_encode(), HasSubstr("it has not answered for 0.02 s"));
  // Half of a reply, with an absurd size.
  EXPECT_THAT(SaidOnce(kGreeting + std::string(6, '\xff')).error_of_encode(), HasSubstr("has not answered"));
}

TEST(TokenizerPipe, AnIdOutsideOfTheVocabularyIsRefused) {
  EXPECT_EQ(SaidOnce(kGreeting + std::string("\1\0\0\0\x2c\1\0\0", 8)).error_of_encode(),
            "it returned token id 300, but its vocabulary size is 300");
}

// Uses HF's own module, if a Python has it.
class HfTokenizer : public ::testing::TestWithParam<std::string> {};

TEST_P(HfTokenizer, IdsAreThoseOfHfsTokenizers) {
  const char* const python = std::getenv("CONCORD_PYTHON");
  const std::string check = std::string(python != nullptr ? python : "python3") + " -c 'import tokenizers' 2>/dev/null";
  if (std::system(check.c_str()) != 0)
    GTEST_SKIP() << "no Python with the module tokenizers (CONCORD_PYTHON names one)";
  const std::string folder = CONCORD_GOLDEN "/tokenizer/" + GetParam();
  const json expected = json::parse(read_file(folder + "/expected.json"));
  TokenizerProcess tokenizer(folder);
  EXPECT_EQ(tokenizer.vocab_size(), expected["vocab_size"].get<int64_t>());
  EXPECT_TRUE(tokenizer.end_of_document().has_value());
  const auto texts = expected["texts"].get<std::vector<std::string>>();
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  EXPECT_EQ(tokenizer.encode(views), expected["plain"].get<std::vector<std::vector<int64_t>>>());
}

INSTANTIATE_TEST_SUITE_P(Families, HfTokenizer, ::testing::Values("qwen", "llama3"));

}  // namespace
}  // namespace concord
