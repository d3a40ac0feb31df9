// Conversion of text to token ids and back.
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

// The special tokens of the byte tokenizer, named as in common models.
inline constexpr std::array<std::string_view, 8> kSpecialTokens = {
    "<|endoftext|>",       "<|pad|>",           "<|im_start|>", "<|im_end|>", "<|begin_of_text|>",
    "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};

// Token ids and aligned labels (HF's convention: the id itself if it is trained on, otherwise kIgnoredToken).
struct TokensAndLabels {
  std::vector<int64_t> ids;
  std::vector<int64_t> labels;
};

// Takes lists for speed, since each call may be a request to another process. Threads: one at a time; create one per
// thread.
class Tokenizer {
 public:
  using Ids = std::vector<int64_t>;

  virtual ~Tokenizer() = default;

  virtual int64_t vocab_size() const = 0;  // ids are less than it
  virtual std::string name() const = 0;
  // Returns the end-of-document token; nullopt if there is none.
  virtual std::optional<int64_t> end_of_document() const = 0;

  // Returns the token that ends generation, unless the model itself names another.
  virtual std::optional<int64_t> end_of_text() const { return end_of_document(); }

  // Encodes training texts without adding special tokens.
  virtual std::vector<Ids> encode(const std::vector<std::string_view>& texts) = 0;
  // Encodes prompts with the special tokens that the tokenizer prepends.
  virtual std::vector<Ids> encode_prompts(const std::vector<std::string_view>& texts) = 0;
  // Returns the text of |ids| without special tokens. Invalid UTF-8, such as half a character, becomes U+FFFD.
  virtual std::string decode(const Ids& ids) = 0;

  // Encodes samples that are trained on in part, given as JSON. All other labels are kIgnoredToken.
  //   {"messages": [{"role", "content", ...}, ...], "tools": [...], "learn_from": 0}: a conversation, formatted by the
  //     model's chat template. The loss covers the assistant's messages including the end of turn, starting at message
  //     learn_from. Special tokens in a message stay text.
  //   {"prompt": ..., "completion": ...}: texts. The loss covers the completion and its end-of-document token.
  //   {"prompt": ..., "completion": ..., "other": ...}: one of two completions, texts or lists of messages. The loss
  //     covers everything after the common prefix of both completions and of the prompt with its generation prompt.
  // Throws ConfigError with the reason if there is no template or it rejects a conversation; the first if there are
  // several.
  virtual std::vector<TokensAndLabels> encode_samples(const std::vector<std::string_view>& samples) = 0;
  // Encodes conversations up to the start of the assistant's next answer. Throws like encode_samples().
  virtual std::vector<Ids> encode_chat_prompts(const std::vector<std::string_view>& chats) = 0;
};

// The built-in tokenizer: a byte is its own id, 0 to 255, followed by kSpecialTokens. Special tokens in a text are
// always text. Has no chat template.
class ByteTokenizer : public Tokenizer {
 public:
  static constexpr int64_t kVocabSize = 256 + static_cast<int64_t>(kSpecialTokens.size());
  static constexpr int64_t kEndOfDocument = 256;
  static constexpr int64_t kPad = 257;

  static std::optional<int64_t> special(std::string_view token);  // id of a special token

  int64_t vocab_size() const override { return kVocabSize; }
  std::string name() const override { return "byte"; }
  std::optional<int64_t> end_of_document() const override { return kEndOfDocument; }
  std::vector<Ids> encode(const std::vector<std::string_view>& texts) override;
  std::vector<Ids> encode_prompts(const std::vector<std::string_view>& texts) override { return encode(texts); }
  std::string decode(const Ids& ids) override;
  std::vector<TokensAndLabels> encode_samples(const std::vector<std::string_view>& samples) override;
  std::vector<Ids> encode_chat_prompts(const std::vector<std::string_view>& chats) override;
};

// Collects texts and encodes many at a time, which is fast for a tokenizer in another process. Threads: one at a time.
class BatchedEncoder {
 public:
  // |each| receives the ids of each text, in the order of add().
  BatchedEncoder(Tokenizer& tokenizer, std::function<void(std::vector<int64_t>)> each)
      : tokenizer_(tokenizer), each_(std::move(each)) {}

  void add(std::string text);
  void finish();  // encodes pending texts

 private:
  Tokenizer& tokenizer_;
  std::function<void(std::vector<int64_t>)> each_;
  std::vector<std::string> waiting_;
  size_t waiting_bytes_ = 0;
};

// Like BatchedEncoder, for samples of lines. Threads: one at a time.
class BatchedSamples {
 public:
  using Each = std::function<void(const TokensAndLabels& tokens, int64_t line)>;
  using Refuse = std::function<void(int64_t line, const std::string& why)>;
  // |each| receives the tokens of each sample, in the order of add(). |refuse| throws: the tokenizer rejects the sample
  // of a line, or it has no trained tokens.
  BatchedSamples(Tokenizer& tokenizer, Each each, Refuse refuse)
      : tokenizer_(tokenizer), each_(std::move(each)), refuse_(std::move(refuse)) {}

  void add(std::string sample, int64_t line);
  void finish();  // encodes pending samples

 private:
  void refuse_first() const;

  Tokenizer& tokenizer_;
  Each each_;
  Refuse refuse_;
  std::vector<std::string> waiting_;
  std::vector<int64_t> lines_;
};

// |name| is "byte", or a path of a HF tokenizer.json or of its folder (trainer/data/text/tokenizer_process.h).
// |chat_template| is a Jinja file; empty: the tokenizer's own. Throws ConfigError if there is no such tokenizer.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name, const std::string& chat_template = "");

}  // namespace concord
