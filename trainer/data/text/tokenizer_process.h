// HF's own tokenizers, and chat templates, in a separate process: for `concord data build`, for training on text that
// is not tokenized yet, and for generation.
#pragma once

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

// The tokenizer.json that |path| is or holds. Throws ConfigError if there is none.
std::string tokenizer_file(const std::string& path);

// Starts Python (CONCORD_PYTHON, else python3) with trainer/data/text/tokenizer_process.py, which is compiled into the
// program, on a tokenizer.json or a folder that holds one. The ids are those of tokenizers' encode(text,
// add_special_tokens=False), and of transformers' apply_chat_template.
//
// The process ends with the object, and when ours dies: its input closes; one that does not is killed. One that says
// nothing for CONCORD_TOKENIZER_TIMEOUT seconds (120) is an error, as is one that needs more than
// CONCORD_TOKENIZER_MEMORY GiB (16), and a file that is not a regular one or has more than 256 MiB. Threads: one at a
// time; several objects, each in its own thread, work at the same time.
class TokenizerProcess : public Tokenizer {
 public:
  // Throws ConfigError if the file, Python or its module tokenizers is missing, with what to do about it.
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
  std::unique_ptr<TokenizerPipe> pipe_;  // closed first: then the process ends by itself
  TokenizerGreeting greeting_;
  std::optional<BpeCache> pieces_;  // of plain texts, where the tokenizer's rule is known
};

}  // namespace concord
