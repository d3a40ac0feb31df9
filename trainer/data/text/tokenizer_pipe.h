// The protocol between this process and a tokenizer process (trainer/data/text/tokenizer_process.py) or an image
// process (trainer/data/images/image_process.py), over two descriptors. The other side is not trusted: its output is
// checked, memory grows only with received data, and a timeout bounds its silence.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/unique_fd.hpp"
#include "trainer/data/text/pretokenizer.h"
#include "trainer/data/text/tokenizer.h"

namespace concord {

struct TokenizerGreeting {
  int64_t vocab_size = 0;  // ids are less than it
  std::optional<int64_t> end_of_document;
  std::optional<int64_t> end_of_text;         // eos_token of tokenizer_config.json
  std::optional<PretokenizerPattern> pieces;  // how plain texts are split; nullopt: request documents
  std::vector<std::string> added_tokens;
};

// Owns both descriptors; |to| is a socket, so that writing without a reader is an error and not a signal. Threads: one
// at a time. Waits: for the other side, at most |patience| plus the time for a large request (100 kB/s) without
// receiving a byte. Throws std::runtime_error, starting with |name|, for an end of file, a timeout and an invalid
// reply.
class TokenizerPipe {
 public:
  TokenizerPipe(UniqueFd to, UniqueFd from, std::string name, std::chrono::milliseconds patience);

  // Receives the first message, a line of JSON. Throws ConfigError if it is {"error": REASON}.
  std::string read_first_line();
  // Like read_first_line(), of a tokenizer.
  TokenizerGreeting read_greeting();

  // The kind of a request; see the script.
  enum class Kind { piece, document, prompt, answer };
  // Returns the ids of each item, all below the greeting's vocab_size. Throws ConfigError if an item is rejected.
  std::vector<std::vector<int64_t>> ids_of(Kind kind, const std::vector<std::string_view>& items);
  // Like ids_of(), for conversations, with labels.
  std::vector<TokensAndLabels> learn(const std::vector<std::string_view>& chats);
  std::string decode(const std::vector<int64_t>& ids);
  // Sends one |item|. Returns the bytes of the reply. Throws ConfigError if it is rejected.
  std::string bytes_of(const char* kind, std::string_view item);

 private:
  using Clock = std::chrono::steady_clock;

  void send(std::string_view bytes);
  void receive(void* to, size_t count);
  void request(const char* kind, const std::vector<std::string_view>& items);
  std::string receive_text(uint32_t bytes);
  // Returns nullopt if the item is rejected, and sets |refusal| to the reason unless it is set already.
  std::optional<std::vector<int64_t>> receive_ids(std::optional<std::string>* refusal);
  bool wait_for(int fd, short events) const;  // true, or throws
  [[noreturn]] void fail(const std::string& what) const;
  [[noreturn]] void fail_to_answer(std::chrono::milliseconds waited) const;

  UniqueFd from_;
  UniqueFd to_;  // closed first: the other side exits at the end of its input
  std::string name_;
  std::chrono::milliseconds patience_;
  std::chrono::milliseconds allowed_;  // |patience_| plus the time for the current request
  int64_t vocab_size_ = 0;
};

}  // namespace concord
