// Text to token ids.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace concord {

// Specials that a tokenizer may have and that documents and chat templates need.
inline constexpr std::array<std::string_view, 8> kSpecialTokens = {
    "<|endoftext|>",       "<|pad|>",           "<|im_start|>", "<|im_end|>", "<|begin_of_text|>",
    "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};

// Threads: one at a time; make one per thread.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual int64_t vocab_size() const = 0;  // ids are below it
  virtual std::string name() const = 0;
  // Special tokens in the text are not recognized if |literal|: what a user wrote stays text.
  virtual std::vector<std::vector<int64_t>> encode(const std::vector<std::string_view>& texts, bool literal) = 0;
  // The id of a special; none if the tokenizer does not have it.
  virtual std::optional<int64_t> special(std::string_view token) const = 0;
  // What ends a document.
  virtual std::optional<int64_t> end_of_document() const = 0;
};

// Built in: a byte is its own id, 0 to 255, and kSpecialTokens follow. Specials in a text are always text.
class ByteTokenizer : public Tokenizer {
 public:
  static constexpr int64_t kVocabSize = 256 + static_cast<int64_t>(kSpecialTokens.size());
  static constexpr int64_t kEndOfDocument = 256;
  static constexpr int64_t kPad = 257;

  int64_t vocab_size() const override { return kVocabSize; }
  std::string name() const override { return "byte"; }
  std::vector<std::vector<int64_t>> encode(const std::vector<std::string_view>& texts, bool literal) override;
  std::optional<int64_t> special(std::string_view token) const override;
  std::optional<int64_t> end_of_document() const override { return kEndOfDocument; }
};

// Collects texts and encodes many at a time, which is fast for a tokenizer in another process. Threads: one at
// a time.
class BatchedEncoder {
 public:
  // |each| gets the ids of each text, in the order of add().
  BatchedEncoder(Tokenizer& tokenizer, std::function<void(std::vector<int64_t>)> each)
      : tokenizer_(tokenizer), each_(std::move(each)) {}

  void add(std::string text);
  void finish();  // encodes what is pending

 private:
  Tokenizer& tokenizer_;
  std::function<void(std::vector<int64_t>)> each_;
  std::vector<std::string> waiting_;
  size_t waiting_bytes_ = 0;
};

// "byte", or a path to a HF tokenizer.json or to the folder that holds it (trainer/data/tokenizer_process.h). Throws
// ConfigError if there is none.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name);

}  // namespace concord
