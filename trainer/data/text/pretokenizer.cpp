#include "trainer/data/text/pretokenizer.h"

#include <algorithm>

namespace concord {
namespace {

// The size at which the cache is cleared. Far fewer pieces of a corpus occur more than once.
constexpr size_t kMaxPieces = 1 << 20, kMaxIds = size_t{1} << 24;

enum class CharClass : uint8_t { other, letter, digit, blank, line_end };  // a line end is blank too

constexpr std::array<CharClass, 128> char_classes() {
  std::array<CharClass, 128> table{};
  for (int c = 'a'; c <= 'z'; ++c) table[static_cast<size_t>(c)] = CharClass::letter;
  for (int c = 'A'; c <= 'Z'; ++c) table[static_cast<size_t>(c)] = CharClass::letter;
  for (int c = '0'; c <= '9'; ++c) table[static_cast<size_t>(c)] = CharClass::digit;
  for (const char c : {' ', '\t', '\v', '\f'}) table[static_cast<size_t>(c)] = CharClass::blank;
  for (const char c : {'\r', '\n'}) table[static_cast<size_t>(c)] = CharClass::line_end;
  return table;
}
constexpr std::array<CharClass, 128> kCharClasses = char_classes();

// Scans one text. Positions beyond its end match no kind.
struct Scan {
  std::string_view text;

  bool is(size_t at, CharClass kind) const {
    return at < text.size() && kCharClasses[static_cast<size_t>(text[at]) & 127] == kind;
  }
  bool is_blank(size_t at) const { return is(at, CharClass::blank) || is(at, CharClass::line_end); }
  // Returns the end of the run of |kind| starting at |at|, at most |most| characters.
  size_t end_of(size_t at, CharClass kind, size_t most = std::string_view::npos) const {
    for (size_t count = 0; count < most && is(at, kind); ++count) ++at;
    return at;
  }
  size_t end_of_blanks(size_t at) const {
    while (is_blank(at)) ++at;
    return at;
  }
};

// 's|'t|'re|'ve|'m|'ll|'d
size_t contraction(std::string_view text, bool any_case) {
  if (text[0] != '\'') return 0;
  const auto letter = [&](size_t at) {
    const char c = at < text.size() ? text[at] : '\0';
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  const char first = letter(1), second = letter(2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  const bool is_two =
      (first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l');
  return is_two ? 3 : 0;
}

// \s+(?!\S)|\s+: the last blank before other text belongs to that text.
size_t blanks(const Scan& scan) {
  const size_t end = scan.end_of_blanks(0);
  return end == scan.text.size() || end == 1 ? end : end - 1;
}

// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
size_t gpt2_piece(const Scan& scan) {
  if (const size_t length = contraction(scan.text, false); length > 0) return length;
  const size_t begin = scan.text[0] == ' ' ? 1 : 0;
  for (const CharClass kind : {CharClass::letter, CharClass::digit, CharClass::other}) {
    if (scan.is(begin, kind)) return scan.end_of(begin, kind);
  }
  return blanks(scan);
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|
// \s+(?!\S)|\s+
size_t gpt4_piece(const Scan& scan, size_t digits) {
  if (const size_t length = contraction(scan.text, true); length > 0) return length;
  if (scan.is(0, CharClass::letter)) return scan.end_of(0, CharClass::letter);
  const bool may_lead = scan.is(0, CharClass::other) || scan.is(0, CharClass::blank);
  if (may_lead && scan.is(1, CharClass::letter)) return scan.end_of(1, CharClass::letter);
  if (scan.is(0, CharClass::digit)) return scan.end_of(0, CharClass::digit, digits);
  const size_t begin = scan.text[0] == ' ' ? 1 : 0;
  if (scan.is(begin, CharClass::other)) return scan.end_of(scan.end_of(begin, CharClass::other), CharClass::line_end);
  for (size_t end = scan.end_of_blanks(0); end > 0; --end) {
    if (scan.is(end - 1, CharClass::line_end)) return end;
  }
  return blanks(scan);
}

}  // namespace

size_t piece_length(PretokenizerPattern rule, std::string_view text) {
  const Scan scan{text};
  if (rule == PretokenizerPattern::gpt2) return gpt2_piece(scan);
  return gpt4_piece(scan, rule == PretokenizerPattern::qwen2 ? 1 : 3);
}

BpeCache::BpeCache(PretokenizerPattern rule, const std::vector<std::string>& added_tokens)
    : rule_(rule), added_tokens_(added_tokens) {
  std::erase(added_tokens_, "");
  for (const std::string& token : added_tokens_) begins_added_[static_cast<uint8_t>(token[0])] = true;
}

bool BpeCache::is_plain(std::string_view text) const {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if (byte >= 128) return false;
    if (!begins_added_[byte]) continue;
    const std::string_view rest = text.substr(i);
    if (std::ranges::any_of(added_tokens_, [&](const std::string& token) { return rest.starts_with(token); }))
      return false;
  }
  return true;
}

void BpeCache::learn(const std::vector<std::string_view>& texts, const Encode& encode) {
  if (places_.size() > kMaxPieces || ids_.size() > kMaxIds) {
    places_.clear();
    ids_.clear();
  }
  std::vector<std::string_view> unknown;
  for (std::string_view text : texts) {
    while (!text.empty()) {
      const std::string_view piece = text.substr(0, piece_length(rule_, text));
      text.remove_prefix(piece.size());
      if (places_.contains(piece)) continue;
      unknown.push_back(piece);
      places_.emplace(piece, Place{});
    }
  }
  if (unknown.empty()) return;
  const std::vector<Ids> found = encode(unknown);
  for (size_t i = 0; i < unknown.size(); ++i) {
    places_.find(unknown[i])->second = {static_cast<uint32_t>(ids_.size()), static_cast<uint32_t>(found[i].size())};
    ids_.insert(ids_.end(), found[i].begin(), found[i].end());
  }
}

std::vector<BpeCache::Ids> BpeCache::encode(const std::vector<std::string_view>& texts, const Encode& encode) {
  try {
    learn(texts, encode);
  } catch (...) {
    places_.clear();  // some have no ids yet
    throw;
  }
  std::vector<Ids> encoded(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    Ids& ids = encoded[i];
    ids.reserve(texts[i].size() / 3);
    for (std::string_view text = texts[i]; !text.empty();) {
      const size_t length = piece_length(rule_, text);
      const Place place = places_.find(text.substr(0, length))->second;
      ids.insert(ids.end(), ids_.begin() + place.begin, ids_.begin() + place.begin + place.count);
      text.remove_prefix(length);
    }
  }
  return encoded;
}

}  // namespace concord
