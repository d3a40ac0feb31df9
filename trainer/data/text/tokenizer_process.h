// HF's tokenizers and chat templates in a separate process: for `concord data build`, for training on text that is not
// tokenized yet, and for generation.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/data/text/python_process.h"
#include "trainer/data/text/tokenizer.h"
#include "trainer/data/text/tokenizer_pipe.h"

namespace concord {

// Returns |path| if it is a tokenizer.json, or the one in the folder |path|. Throws ConfigError if there is none.
std::string tokenizer_file(const std::string& path);

// How long such a process may be silent (CONCORD_TOKENIZER_TIMEOUT): modules are imported within seconds, even from a
// slow disk.
std::chrono::milliseconds python_patience();
// The limit of its address space in bytes (CONCORD_TOKENIZER_MEMORY): far more than tokenizers need, and less than a
// hostile file would.
uint64_t python_memory_limit();

// Starts Python (CONCORD_PYTHON, otherwise python3) with trainer/data/text/tokenizer_process.py, which is compiled into
// the program, for a tokenizer.json or its folder. The ids are those of tokenizers' encode(text,
// add_special_tokens=False), and of transformers' apply_chat_template.
//
// The child exits with the object, and when this process dies, since its input closes; otherwise it is killed. Errors:
// no output for CONCORD_TOKENIZER_TIMEOUT seconds (120), more than CONCORD_TOKENIZER_MEMORY GiB (16), and a file that
// is not regular or larger than 256 MiB. Threads: one at a time; several objects can work concurrently, each in its own
// thread.
class TokenizerProcess : public Tokenizer {
 public:
  // Throws ConfigError if the file, Python or its module tokenizers is missing, with what to do.
  explicit TokenizerProcess(const std::string& path, const std::string& chat_template = "");
  ~TokenizerProcess() override;
  TokenizerProcess(const TokenizerProcess&) = delete;
  TokenizerProcess& operator=(const TokenizerProcess&) = delete;

  int64_t vocab_size() const override { return greeting_.vocab_size; }
  std::string name() const override { return file_; }
  std::optional<int64_t> end_of_document() const override { return greeting_.end_of_document; }
  std::optional<int64_t> end_of_text() const override {
    return greeting_.end_of_text ? greeting_.end_of_text : greeting_.end_of_document;
  }
  std::vector<Ids> encode(const std::vector<std::string_view>& texts) override;
  std::vector<Ids> encode_prompts(const std::vector<std::string_view>& texts) override;
  std::string decode(const Ids& ids) override;
  std::vector<TokensAndLabels> encode_samples(const std::vector<std::string_view>& samples) override;
  std::vector<Ids> encode_chat_prompts(const std::vector<std::string_view>& chats) override;

 private:
  std::string file_;
  PythonProcess process_;
  std::unique_ptr<TokenizerPipe> pipe_;  // closed first, so that the child exits by itself
  TokenizerGreeting greeting_;
  std::optional<BpeCache> pieces_;  // for plain texts, if the tokenizer's pattern is known
};

}  // namespace concord
