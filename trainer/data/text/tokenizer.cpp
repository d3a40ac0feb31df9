#include "trainer/data/text/tokenizer.h"

#include <algorithm>

#include "core/base/config_error.h"
#include "core/base/files/input_file.h"
#include "core/base/parse_json.h"
#include "core/base/utf8.h"
#include "trainer/data/text/tokenizer_process.h"
#include "trainer/data/token_batch.h"

namespace concord {

std::vector<Tokenizer::Ids> ByteTokenizer::encode(const std::vector<std::string_view>& texts) {
  std::vector<Ids> encoded;
  encoded.reserve(texts.size());
  for (const std::string_view text : texts) {
    const auto* const bytes = reinterpret_cast<const uint8_t*>(text.data());
    encoded.emplace_back(bytes, bytes + text.size());
  }
  return encoded;
}

std::string ByteTokenizer::decode(const Ids& ids) {
  std::string bytes, text;
  for (const int64_t id : ids) {
    if (id >= 0 && id < 256) bytes += static_cast<char>(id);
  }
  for (size_t at = 0; at < bytes.size();) {
    const size_t length = utf8_length(std::string_view(bytes).substr(at, 4));
    text += length > 0 ? bytes.substr(at, length) : "\xEF\xBF\xBD";
    at += std::max<size_t>(length, 1);
  }
  return text;
}

std::vector<TokensAndLabels> ByteTokenizer::encode_samples(const std::vector<std::string_view>& samples) {
  std::vector<TokensAndLabels> encoded;
  for (const std::string_view text : samples) {
    const nlohmann::json sample = parse_json(text, "sample");
    if (!sample.contains("completion") || !sample["prompt"].is_string()) encode_chat_prompts({text});
    const std::string prompt = sample["prompt"].get<std::string>(),
                      completion = sample["completion"].get<std::string>();
    TokensAndLabels& tokens = encoded.emplace_back();
    tokens.ids = encode({prompt + completion}).front();
    tokens.ids.push_back(kEndOfDocument);
    tokens.labels = tokens.ids;
    std::fill_n(tokens.labels.begin(), prompt.size(), kIgnoredToken);
  }
  return encoded;
}

std::vector<Tokenizer::Ids> ByteTokenizer::encode_chat_prompts(const std::vector<std::string_view>& chats) {
  if (chats.empty()) return {};
  throw ConfigError(
      "the byte tokenizer has no chat template; for conversations use a model's folder, or a folder with a "
      "tokenizer.json and a chat_template.jinja");
}

std::optional<int64_t> ByteTokenizer::special(std::string_view token) {
  const auto found = std::find(kSpecialTokens.begin(), kSpecialTokens.end(), token);
  if (found == kSpecialTokens.end()) return std::nullopt;
  return 256 + (found - kSpecialTokens.begin());
}

void BatchedEncoder::add(std::string text) {
  constexpr size_t kTextsAtOnce = 256, kBytesAtOnce = 1 << 20;
  waiting_bytes_ += text.size();
  waiting_.push_back(std::move(text));
  if (waiting_.size() >= kTextsAtOnce || waiting_bytes_ >= kBytesAtOnce) finish();
}

void BatchedEncoder::finish() {
  if (waiting_.empty()) return;
  for (std::vector<int64_t>& ids : tokenizer_.encode({waiting_.begin(), waiting_.end()})) each_(std::move(ids));
  waiting_.clear();
  waiting_bytes_ = 0;
}

void BatchedSamples::add(std::string sample, int64_t line) {
  constexpr size_t kSamplesAtOnce = 256;
  waiting_.push_back(std::move(sample));
  lines_.push_back(line);
  if (waiting_.size() >= kSamplesAtOnce) finish();
}

void BatchedSamples::finish() {
  std::vector<TokensAndLabels> encoded;
  try {
    encoded = tokenizer_.encode_samples({waiting_.begin(), waiting_.end()});
  } catch (const ConfigError&) {
    refuse_first();
    throw;
  }
  for (size_t i = 0; i < encoded.size(); ++i) {
    const auto is_learnt = [](int64_t label) { return label != kIgnoredToken; };
    if (std::ranges::none_of(encoded[i].labels, is_learnt)) {
      refuse_(lines_[i], "it has no tokens to train on: there is no message of the assistant");
    }
    each_(encoded[i], lines_[i]);
  }
  waiting_.clear();
  lines_.clear();
}

// Finds the rejected sample one by one, since errors are rare.
void BatchedSamples::refuse_first() const {
  for (size_t i = 0; i < waiting_.size(); ++i) {
    try {
      tokenizer_.encode_samples({waiting_[i]});
    } catch (const ConfigError& error) {
      refuse_(lines_[i], error.what());
    }
  }
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name, const std::string& chat_template) {
  if (!chat_template.empty()) InputFile(chat_template, "give a Jinja file for the chat template");
  if (name == "byte") return std::make_unique<ByteTokenizer>();
  return std::make_unique<TokenizerProcess>(name, chat_template);
}

}  // namespace concord
