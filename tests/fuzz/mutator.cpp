#include "tests/fuzz/mutator.h"

#include <cctype>
#include <iterator>

namespace concord::fuzz {
namespace {

constexpr size_t kMaxInput = 1 << 16;

// Numbers for which sizes and offsets fail, and misplaced pieces of JSON.
constexpr const char* kNumbers[] = {"0",
                                    "1",
                                    "-1",
                                    "4",
                                    "7",
                                    "8",
                                    "64",
                                    "255",
                                    "65536",
                                    "2147483648",
                                    "4294967295",
                                    "4294967296",
                                    "4611686018427387904",
                                    "9223372036854775807",
                                    "9223372036854775808",
                                    "18446744073709551615",
                                    "18446744073709551616",
                                    "1e308",
                                    "1e999",
                                    "0.5",
                                    "-0"};
constexpr const char* kTokens[] = {"{",
                                   "}",
                                   "[",
                                   "]",
                                   ",",
                                   ":",
                                   "\"",
                                   "null",
                                   "true",
                                   "{}",
                                   "[]",
                                   "\"\"",
                                   "\\u0000",
                                   "\\",
                                   "../",
                                   "/",
                                   "..",
                                   "__metadata__",
                                   "dtype",
                                   "shape",
                                   "data_offsets",
                                   "weight_map",
                                   "F32",
                                   "BF16",
                                   "F4",
                                   "\xff",
                                   "\xed\xa0\x80",
                                   "[[[[[[[[",
                                   "{\"a\":{\"a\":",
                                   "\n",
                                   "rope_scaling",
                                   "model_type",
                                   "llama3",
                                   "layer_types"};

bool is_digit(char letter) { return std::isdigit(static_cast<unsigned char>(letter)) != 0; }

}  // namespace

std::string Mutator::input(uint64_t number) {
  std::seed_seq seeds{static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32), static_cast<uint32_t>(number),
                      static_cast<uint32_t>(number >> 32)};
  random_.seed(seeds);
  std::string text = corpus_[below(corpus_.size())];
  const uint64_t changes = 1 + below(4);
  for (uint64_t i = 0; i < changes; ++i) change(text);
  if (text.size() > kMaxInput) text.resize(kMaxInput);
  return text;
}

void Mutator::change(std::string& text) {
  switch (below(8)) {
    case 0:
      if (!text.empty()) text[below(text.size())] ^= static_cast<char>(1u << below(8));
      return;
    case 1:
      if (!text.empty()) text[below(text.size())] = static_cast<char>(below(256));
      return;
    case 2: text.resize(below(text.size() + 1)); return;
    case 3: text.erase(below(text.size() + 1), 1 + below(16)); return;
    case 4: return insert_token(text);
    case 5: return splice(text);
    case 6: return copy_part(text);
    default: return change_number(text);
  }
}

// Replaces a number in the text by a different one.
void Mutator::change_number(std::string& text) {
  if (text.empty()) return;
  size_t begin = below(text.size());
  while (begin < text.size() && !is_digit(text[begin])) ++begin;
  size_t end = begin;
  while (end < text.size() && is_digit(text[end])) ++end;
  text.replace(begin, end - begin, kNumbers[below(std::size(kNumbers))]);
}

void Mutator::insert_token(std::string& text) {
  text.insert(below(text.size() + 1), kTokens[below(std::size(kTokens))]);
}

// Appends the rest of another entry.
void Mutator::splice(std::string& text) {
  const std::string& other = corpus_[below(corpus_.size())];
  text.resize(below(text.size() + 1));
  text += other.substr(below(other.size() + 1));
}

// Copies a part to another position: duplicate names.
void Mutator::copy_part(std::string& text) {
  const std::string part = text.substr(below(text.size() + 1), below(64));
  text.insert(below(text.size() + 1), part);
}

}  // namespace concord::fuzz
