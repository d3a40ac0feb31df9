// Invalid files, limits and other programs: each gives an error message and an exit code.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/processes/ended_process.h"
#include "tests/temporary_folder.h"

namespace concord::testing_processes {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class HostileInput : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return folder_ / name;
  }
  static EndedProcess concord(std::vector<std::string> words, const ProcessSettings& settings = {}) {
    return run_to_end(with_front(std::move(words), {CONCORD_PROGRAM}), settings);
  }
  // Under a limit of the shell.
  static EndedProcess limited(const std::string& limit, std::vector<std::string> words) {
    return run_to_end(
        with_front(std::move(words), {"/bin/sh", "-c", limit + " && exec \"$0\" \"$@\"", CONCORD_PROGRAM}));
  }
  // A model of which only config.json is read before a process starts.
  std::string model_folder() const {
    fs::create_directory(folder_ / "model");
    fs::copy_file(CONCORD_GOLDEN "/hf/qwen2-tiny/config.json", folder_ / "model/config.json");
    return folder_ / "model";
  }
  std::vector<std::string> train(const std::string& data) const {
    return {"train",         "--nproc",      "2", "--model", folder_ / "model", "--train_data", data, "--output_dir",
            folder_ / "run", "--seq_length", "64"};
  }

  tests::TemporaryFolder folder_;
};

constexpr const char* kPair = R"({"prompt": "a", "completion": "b"})";

// A module of the name that HF's has, whose ids no vocabulary of a small model has.
constexpr const char* kStandIn = R"(
class Encoding:
    def __init__(self, ids): self.ids = ids
class Tokenizer:
    encode_special_tokens = False
    @staticmethod
    def from_str(text): return Tokenizer()
    def no_truncation(self): pass
    def no_padding(self): pass
    def get_vocab(self, with_added_tokens): return {'a': 1000000}
    def token_to_id(self, name): return 1 if name in ('<|im_start|>', '<|im_end|>', '</s>') else None
    def encode(self, text): return Encoding([900000 + ord(c) for c in text])
    def encode_batch(self, texts, add_special_tokens):
        return [Encoding([900000 + ord(c) for c in text]) for text in texts]
)";

TEST_F(HostileInput, TextForAModelWithoutATokenizerIsRefusedWithWhatToDo) {
  model_folder();
  const EndedProcess refused = concord(train(write("chats.jsonl", kPair)));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("has no tokenizer.json"), HasSubstr("--tokenizer byte")));
}

TEST_F(HostileInput, TextForAModelIsReadWithItsOwnTokenizer) {
  write("tokenizers.py", kStandIn);
  const ProcessSettings settings{.environment = {"PYTHONPATH=" + folder_.path()}};
  std::ofstream(model_folder() + "/tokenizer.json") << "{}";
  EXPECT_THAT(concord(train(write("chats.jsonl", kPair)), settings).err, HasSubstr("token id 900097"));
  EXPECT_THAT(concord(train(write("text.jsonl", "{\"text\": \"abc\"}")), settings).err, HasSubstr("token id 900097"));
  EXPECT_THAT(concord(train(write("text.txt", "abc")), settings).err, HasSubstr("token id 900097"));
  std::vector<std::string> bytes = train(folder_ / "text.txt");
  bytes.insert(bytes.end(), {"--tokenizer", "byte"});
  EXPECT_THAT(concord(bytes, settings).err, Not(HasSubstr("9000")));
}

TEST_F(HostileInput, TextFromFilesAndArgumentsIsQuotedAndShort) {
  model_folder();
  const std::string bad_role =
      R"({"conversations": [{"from": "\u001b[2Jsystem)" + std::string(900'000, 'x') + R"(", "value": "a"}]})";
  std::vector<std::string> on_bytes = train(write("chats.jsonl", bad_role));
  on_bytes.insert(on_bytes.end(), {"--tokenizer", "byte"});
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           on_bytes,
           {"train", "--print_config", "--config",
            write("a.yaml", "max_steps: \"\\e[2J" + std::string(900'000, 'x') + "\"\n")},
           {"train", "--\x1b[2J", "1"},
           {"schedule", "--kind", "\x1b[2J", "--pp", "2", "--microbatches", "2"},
           {"report", folder_ / "\x1b[2J"},
           {"data", "build", "--input", "\x1b[2J.txt", "--tokenizer", "byte", "--output", folder_ / "out"}}) {
    const EndedProcess ended = concord(words);
    EXPECT_EQ(ended.exit_code, 2) << words[0];
    EXPECT_LT(ended.err.size(), 3000U) << words[0];
    EXPECT_THAT(ended.err, HasSubstr("\\x1b[2J")) << words[0];
    EXPECT_THAT(ended.err, Not(HasSubstr("\x1b"))) << words[0];
  }
}

TEST_F(HostileInput, NumbersAndNamesThatCannotBeAreRefusedBeforeARun) {
  const auto printed = [&](const std::string& name, const std::string& value) {
    return concord({"train", "--model", "m", "--train_data", "d", "--print_config", "--" + name, value});
  };
  EXPECT_EQ(printed("seed", "3").exit_code, 0);
  const EndedProcess size = printed("tensor_model_parallel_size", "4611686018427387904");
  EXPECT_EQ(size.exit_code, 2);
  EXPECT_THAT(size.err, HasSubstr(">= 1 and <= 1048576"));
  EXPECT_EQ(printed("order", "tp-xp").exit_code, 2);
  EXPECT_EQ(printed("recompute_modules", "nothing").exit_code, 2);
  const EndedProcess schedule = printed("lr_scheduler_type", "Infinity");
  EXPECT_EQ(schedule.exit_code, 2);
  EXPECT_THAT(schedule.err, HasSubstr("lr_scheduler_type is 'Infinity'; must be one of constant"));
}

TEST_F(HostileInput, ParametersThatNoRankCanHoldAreRefused) {
  const EndedProcess plan = concord({"plan", "--world_size", "1", "--buckets", "--parameters",
                                     write("p.json", R"([{"name": "w", "elements": 4611686018427387904}])")});
  EXPECT_EQ(plan.exit_code, 2);
  EXPECT_THAT(plan.err, HasSubstr("more than 2^52 elements"));
}

TEST_F(HostileInput, ATemporaryFileIsNotWrittenThroughALink) {
  write("victim", "keep");
  for (const std::string name : {"a.svg.new", "c.bin.partial"}) fs::create_symlink(folder_ / "victim", folder_ / name);
  EXPECT_EQ(concord({"lr", "--max_steps", "3", "--svg", folder_ / "a.svg"}).exit_code, 0);
  EXPECT_EQ(concord({"data", "synth", "--tokens", "1000", "--output", folder_ / "c"}).exit_code, 0);
  EXPECT_EQ(fs::file_size(folder_ / "victim"), 4U);
}

TEST_F(HostileInput, ALimitOnTheSizeOfFilesNamesTheFileAndTheLimit) {
  const EndedProcess synth =
      limited("ulimit -f 8", {"data", "synth", "--tokens", "100000", "--output", folder_ / "corpus"});
  EXPECT_EQ(synth.exit_code, 1);
  EXPECT_THAT(synth.err, AllOf(HasSubstr(".partial: cannot be written: File too large"), HasSubstr("ulimit -f")));
}

TEST_F(HostileInput, TooLittleMemorySaysSoAndWhatToDo) {
  const EndedProcess lr = limited("ulimit -v 400000", {"lr", "--max_steps", "10000000", "--json"});
  EXPECT_EQ(lr.exit_code, 1);
  EXPECT_THAT(lr.err, AllOf(HasSubstr("out of memory"), HasSubstr("ulimit -v"), Not(HasSubstr("bad_alloc"))));
}

// A stack that does not fit into the address space is refused as one thread too many is.
TEST_F(HostileInput, TooFewThreadsSaysSoAndWhatToDo) {
  const EndedProcess build = limited("ulimit -s 8000000 && ulimit -v 4000000",
                                     {"data", "build", "--tokenizer", "byte", "--workers", "2", "--input",
                                      write("a.txt", "text"), "--output", folder_ / "out"});
  EXPECT_EQ(build.exit_code, 1);
  EXPECT_THAT(build.err, AllOf(HasSubstr("no more threads"), HasSubstr("ulimit -u")));
}

}  // namespace
}  // namespace concord::testing_processes
