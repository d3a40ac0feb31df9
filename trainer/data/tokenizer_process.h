// HF's own tokenizers in a process beside ours, for `concord data build`. Training itself never starts it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/data/tokenizer.h"

namespace concord {

// Starts Python (CONCORD_PYTHON, else python3) with trainer/data/tokenizer_process.py, which is compiled into the
// program, on a tokenizer.json or a folder that holds one. The ids are those of tokenizers' encode(text,
// add_special_tokens=False).
//
// The process ends with the object, and when ours dies: its input closes. Threads: one at a time; several objects, each
// in its own thread, work at the same time.
class TokenizerProcess : public Tokenizer {
 public:
  // Throws ConfigError where the file, Python or its module tokenizers is missing, with what to do about it.
  explicit TokenizerProcess(const std::string& path);
  ~TokenizerProcess() override;
  TokenizerProcess(const TokenizerProcess&) = delete;
  TokenizerProcess& operator=(const TokenizerProcess&) = delete;

  int64_t vocab_size() const override { return vocab_size_; }
  std::string name() const override { return file_; }
  std::vector<std::vector<int64_t>> encode(const std::vector<std::string_view>& texts, bool literal) override;
  std::optional<int64_t> special(std::string_view token) const override;
  std::optional<int64_t> end_of_document() const override { return end_of_document_; }

 private:
  void start();
  void read_greeting();
  void send(std::string_view bytes);
  void receive(void* to, size_t count);
  [[noreturn]] void fail(const std::string& what);

  std::string file_;
  std::string python_;
  pid_t pid_ = -1;
  int to_ = -1;    // its standard input
  int from_ = -1;  // its standard output
  int64_t vocab_size_ = 0;
  std::optional<int64_t> end_of_document_;
  std::map<std::string, int64_t, std::less<>> specials_;
};

}  // namespace concord
