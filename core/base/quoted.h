// Text from outside (contents of files, arguments, the environment, what peers and child processes send) as it may
// appear in a message: it cannot move the cursor, change colours, forge a line of the log, or fill a screen.
//
// Example, given std::string place, std::string role:
//   #include <fmt/core.h>
//   #include "core/base/config_error.h"
//   throw ConfigError(fmt::format("{}: the role {} is not known", place, quoted(role)));
//
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace concord {

inline constexpr size_t kMaxQuoted = 200;  // bytes of the text

// In single quotes. Control characters, those that change the direction of writing, and bytes that are not UTF-8 are
// escaped: \n, \x1b, \u202e; so are ' and the backslash. A longer text is cut after kMaxQuoted bytes, and its size
// is said: 'abc...' (900000 bytes).
std::string quoted(std::string_view text);
// For a std::string the compiler would also find std::quoted, which is something else, and prefer it.
inline std::string quoted(const std::string& text) { return quoted(std::string_view(text)); }
inline std::string quoted(std::string& text) { return quoted(std::string_view(text)); }
inline std::string quoted(const char* text) { return quoted(std::string_view(text)); }

// The same without the quotes, for tables and for reasons that libraries give.
std::string one_line(std::string_view text, size_t longest = kMaxQuoted);

// A whole message that may have text from outside in it: the same, but line breaks stay.
std::string printable(std::string_view text, size_t longest = 20'000);

}  // namespace concord
