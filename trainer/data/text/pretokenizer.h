// Byte-level BPE of plain text without a request to the tokenizer's process for every word.
//
// Such a tokenizer splits a text by a regular expression (words with the preceding space, digits, punctuation, blanks)
// and encodes each piece separately, so the ids of a piece can be cached. Only ASCII texts without any of the
// tokenizer's added tokens are plain: they are not normalized, and letters, digits and blanks are the same in every
// version of Unicode. Other texts are passed to HF's tokenizers.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/enum_names.h"

namespace concord {

// The supported regular expressions, by the families that use them: GPT-2's; Qwen's, with single digits; and Llama 3's
// (also GPT-4's), with up to three.
enum class PretokenizerPattern { gpt2, qwen2, llama3 };
template <>
inline constexpr std::string_view kEnumNames<PretokenizerPattern>[] = {"gpt2", "qwen2", "llama3"};

// Returns the length of the first piece of |text|, which is ASCII and not empty. Pure.
size_t piece_length(PretokenizerPattern rule, std::string_view text);

// Threads: one at a time.
class BpeCache {
 public:
  using Ids = std::vector<int64_t>;
  // Returns the ids of each piece; all pieces are different.
  using Encode = std::function<std::vector<Ids>(const std::vector<std::string_view>&)>;

  BpeCache(PretokenizerPattern rule, const std::vector<std::string>& added_tokens);

  bool is_plain(std::string_view text) const;
  // Returns the ids of |texts|, which are plain. Calls |encode| once, for the pieces that are not cached.
  std::vector<Ids> encode(const std::vector<std::string_view>& texts, const Encode& encode);

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  // The position of a piece's ids in |ids_|.
  struct Place {
    uint32_t begin = 0, count = 0;
  };
  void learn(const std::vector<std::string_view>& texts, const Encode& encode);

  PretokenizerPattern rule_;
  std::array<bool, 256> begins_added_ = {};  // by the first byte
  std::vector<std::string> added_tokens_;
  std::unordered_map<std::string, Place, Hash, std::equal_to<>> places_;
  std::vector<int32_t> ids_;
};

}  // namespace concord
