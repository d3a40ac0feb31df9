// HF's own tokenizers in a separate process: for `concord data build`, and for training on text that is not tokenized
// yet.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/data/tokenizer.h"
#include "trainer/data/tokenizer_pipe.h"

namespace concord {

// Starts Python (CONCORD_PYTHON, else python3) with trainer/data/tokenizer_process.py, which is compiled into the
// program, on a tokenizer.json or a folder that holds one. The ids are those of tokenizers' encode(text,
// add_special_tokens=False).
//
// The process ends with the object, and when ours dies: its input closes; one that does not is killed. One that says
// nothing for CONCORD_TOKENIZER_TIMEOUT seconds (120) is an error. Threads: one at a time; several objects, each
// in its own thread, work at the same time.
class TokenizerProcess : public Tokenizer {
 public:
  // Throws ConfigError if the file, Python or its module tokenizers is missing, with what to do about it.
  explicit TokenizerProcess(const std::string& path);
  ~TokenizerProcess() override;
  TokenizerProcess(const TokenizerProcess&) = delete;
  TokenizerProcess& operator=(const TokenizerProcess&) = delete;

  int64_t vocab_size() const override { return greeting_.vocab_size; }
  std::string name() const override { return file_; }
  std::vector<std::vector<int64_t>> encode(const std::vector<std::string_view>& texts, bool literal) override;
  std::optional<int64_t> special(std::string_view token) const override;
  std::optional<int64_t> end_of_document() const override { return greeting_.end_of_document; }

 private:
  void start();
  void stop();

  std::string file_;
  std::string python_;
  pid_t pid_ = -1;
  std::unique_ptr<TokenizerPipe> pipe_;
  TokenizerGreeting greeting_;
};

}  // namespace concord
