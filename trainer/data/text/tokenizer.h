// Text to token ids, and back.
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

// The specials of the byte tokenizer, as models know them.
inline constexpr std::array<std::string_view, 8> kSpecialTokens = {
    "<|endoftext|>",       "<|pad|>",           "<|im_start|>", "<|im_end|>", "<|begin_of_text|>",
    "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};

// Ids and aligned labels (HF's convention: the id itself where it is trained on, otherwise kIgnoredToken).
struct TokensAndLabels {
  std::vector<int64_t> ids;
  std::vector<int64_t> labels;
};

// Lists are for speed: each may be a question to another process. Threads: one at a time; make one per thread.
class Tokenizer {
 public:
  using Ids = std::vector<int64_t>;

  virtual ~Tokenizer() = default;

  virtual int64_t vocab_size() const = 0;  // ids are below it
  virtual std::string name() const = 0;
  // The id that ends a document; none if the tokenizer has none.
  virtual std::optional<int64_t> end_of_document() const = 0;

  // The id that ends what a model writes, unless the model itself names another.
  virtual std::optional<int64_t> end_of_text() const { return end_of_document(); }

  // Texts to be learnt as they are: no special token is added.
  virtual std::vector<Ids> encode(const std::vector<std::string_view>& texts) = 0;
  // Texts that a model is to continue: with the special tokens that the tokenizer puts in front.
  virtual std::vector<Ids> encode_prompts(const std::vector<std::string_view>& texts) = 0;
  // The text of ids, without special tokens. Bytes that are no UTF-8, say of half a character, become U+FFFD.
  virtual std::string decode(const Ids& ids) = 0;

  // What is learnt in part, as JSON texts. Everything else has the label kIgnoredToken.
  //   {"messages": [{"role", "content", ...}, ...], "tools": [...], "learn_from": 0}: a conversation as the model's
  //     chat template writes it. Learnt is what the assistant writes, with what ends its turn, in message learn_from
  //     and later. Special tokens in a message stay text.
  //   {"prompt": ..., "completion": ...}: texts. Learnt is the completion, with the token that ends a document.
  //   {"prompt": ..., "completion": ..., "other": ...}: one of two completions, texts or lists of messages. Learnt is
  //     what follows the tokens that the prompt, with what begins the assistant's answer, and both of them begin with.
  // Throws ConfigError, with the reason, if there is no template or it refuses a conversation; of several the first.
  virtual std::vector<TokensAndLabels> encode_samples(const std::vector<std::string_view>& samples) = 0;
  // Conversations, up to where the assistant's next answer begins. Throws as above.
  virtual std::vector<Ids> encode_chat_prompts(const std::vector<std::string_view>& chats) = 0;
};

// Built in: a byte is its own id, 0 to 255, and kSpecialTokens follow. Specials in a text are always text. It has no
// chat template.
class ByteTokenizer : public Tokenizer {
 public:
  static constexpr int64_t kVocabSize = 256 + static_cast<int64_t>(kSpecialTokens.size());
  static constexpr int64_t kEndOfDocument = 256;
  static constexpr int64_t kPad = 257;

  static std::optional<int64_t> special(std::string_view token);  // its id

  int64_t vocab_size() const override { return kVocabSize; }
  std::string name() const override { return "byte"; }
  std::optional<int64_t> end_of_document() const override { return kEndOfDocument; }
  std::vector<Ids> encode(const std::vector<std::string_view>& texts) override;
  std::vector<Ids> encode_prompts(const std::vector<std::string_view>& texts) override { return encode(texts); }
  std::string decode(const Ids& ids) override;
  std::vector<TokensAndLabels> encode_samples(const std::vector<std::string_view>& samples) override;
  std::vector<Ids> encode_chat_prompts(const std::vector<std::string_view>& chats) override;
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

// The same for samples of lines. Threads: one at a time.
class BatchedSamples {
 public:
  using Each = std::function<void(const TokensAndLabels& tokens, int64_t line)>;
  using Refuse = std::function<void(int64_t line, const std::string& why)>;
  // |each| gets the tokens of each sample, in the order of add(). |refuse| throws: the tokenizer refuses the sample of
  // a line, or there is nothing in it to learn.
  BatchedSamples(Tokenizer& tokenizer, Each each, Refuse refuse)
      : tokenizer_(tokenizer), each_(std::move(each)), refuse_(std::move(refuse)) {}

  void add(std::string sample, int64_t line);
  void finish();  // encodes what is pending

 private:
  void refuse_first() const;

  Tokenizer& tokenizer_;
  Each each_;
  Refuse refuse_;
  std::vector<std::string> waiting_;
  std::vector<int64_t> lines_;
};

// "byte", or a path to a HF tokenizer.json or to the folder that holds it (trainer/data/text/tokenizer_process.h).
// |chat_template| is a Jinja file; empty: the tokenizer's own. Throws ConfigError if there is no such tokenizer.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name, const std::string& chat_template = "");

}  // namespace concord
