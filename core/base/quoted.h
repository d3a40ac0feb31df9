// Quoting of untrusted text (file contents, arguments, environment, data from peers and child processes) for messages,
// so that it cannot move the cursor, change colours, forge log lines, or fill a screen.
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
#include <vector>

namespace concord {

inline constexpr size_t kMaxQuoted = 200;  // bytes of the text

// Returns |text| in single quotes. Escapes control characters, characters that change the text direction, bytes that
// are not UTF-8, ' and the backslash: \n, \x1b, \u202e. Longer text is truncated after kMaxQuoted bytes and its size is
// appended: 'abc...' (900000 bytes).
std::string quoted(std::string_view text);
// Overloads that take precedence over std::quoted, which argument-dependent lookup would find for a std::string.
inline std::string quoted(const std::string& text) { return quoted(std::string_view(text)); }
inline std::string quoted(std::string& text) { return quoted(std::string_view(text)); }
inline std::string quoted(const char* text) { return quoted(std::string_view(text)); }

// Like quoted(), but without the quotes, for tables and for error texts of libraries.
std::string one_line(std::string_view text, size_t longest = kMaxQuoted);

// Like one_line(), but keeps line breaks, for whole messages that may contain untrusted text.
std::string printable(std::string_view text, size_t longest = 20'000);

// Returns the line that a POSIX shell reads as |words|.
std::string shell_command(const std::vector<std::string>& words);

}  // namespace concord
