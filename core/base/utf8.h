// Well-formed UTF-8, by table 3-7 of Unicode. Threads: pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace concord {

// Returns the length of the well-formed sequence at the start of |text|; 0 if there is none. Overlong forms, surrogates
// and code points beyond U+10FFFF are not well-formed.
inline size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const auto in = [&](size_t i, int low, int high) { return i < text.size() && byte(i) >= low && byte(i) <= high; };
  const auto tail = [&](size_t i) { return in(i, 0x80, 0xBF); };
  if (in(0, 0x00, 0x7F)) return 1;
  if (in(0, 0xC2, 0xDF)) return tail(1) ? 2 : 0;
  if (in(0, 0xE0, 0xEF)) {
    const bool second = in(1, byte(0) == 0xE0 ? 0xA0 : 0x80, byte(0) == 0xED ? 0x9F : 0xBF);
    return second && tail(2) ? 3 : 0;
  }
  if (in(0, 0xF0, 0xF4)) {
    const bool second = in(1, byte(0) == 0xF0 ? 0x90 : 0x80, byte(0) == 0xF4 ? 0x8F : 0xBF);
    return second && tail(2) && tail(3) ? 4 : 0;
  }
  return 0;
}

}  // namespace concord
