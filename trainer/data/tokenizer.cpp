#include "trainer/data/tokenizer.h"

#include <algorithm>

#include "trainer/data/tokenizer_process.h"

namespace concord {

std::vector<std::vector<int64_t>> ByteTokenizer::encode(const std::vector<std::string_view>& texts, bool /*literal*/) {
  std::vector<std::vector<int64_t>> encoded;
  encoded.reserve(texts.size());
  for (const std::string_view text : texts) {
    const auto* const bytes = reinterpret_cast<const uint8_t*>(text.data());
    encoded.emplace_back(bytes, bytes + text.size());
  }
  return encoded;
}

std::optional<int64_t> ByteTokenizer::special(std::string_view token) const {
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
  for (std::vector<int64_t>& ids : tokenizer_.encode({waiting_.begin(), waiting_.end()}, false)) each_(std::move(ids));
  waiting_.clear();
  waiting_bytes_ = 0;
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name) {
  if (name == "byte") return std::make_unique<ByteTokenizer>();
  return std::make_unique<TokenizerProcess>(name);
}

}  // namespace concord
