// Byte-level BPE of plain text without asking the tokenizer's process for every word.
//
// Such a tokenizer cuts a text into pieces by a regular expression (words with the space before them, digits,
// punctuation, blanks) and encodes each piece by itself, so the ids of a piece can be remembered. Only texts that are
// ASCII and contain none of the tokenizer's added tokens are plain: nothing normalizes them, and letters, digits and
// blanks are the same in every version of Unicode. The rest is left to HF's tokenizers.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace concord {

// The regular expressions that are known here, by the families that use them: GPT-2's; Qwen's, with single digits; and
// Llama 3's (also GPT-4's), with up to three.
enum class PretokenizerPattern { gpt2, qwen2, llama3 };

std::optional<PretokenizerPattern> piece_rule(std::string_view name);

// Pure: the length of the piece that |text|, which is ASCII and not empty, begins with.
size_t piece_length(PretokenizerPattern rule, std::string_view text);

// Threads: one at a time.
class BpeCache {
 public:
  using Ids = std::vector<int64_t>;
  // The ids of each of some pieces, all different.
  using Encode = std::function<std::vector<Ids>(const std::vector<std::string_view>&)>;

  BpeCache(PretokenizerPattern rule, const std::vector<std::string>& added_tokens);

  bool is_plain(std::string_view text) const;
  // The ids of |texts|, which are plain. |encode| is asked once, for the pieces that are new.
  std::vector<Ids> encode(const std::vector<std::string_view>& texts, const Encode& encode);

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  // Where the ids of a piece are in |ids_|.
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
