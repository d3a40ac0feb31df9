#include "core/base/quoted.h"

#include <cstdint>
#include <cstdio>

#include "core/base/utf8.h"

namespace concord {
namespace {

uint32_t code_point(std::string_view sequence) {
  if (sequence.size() == 1) return static_cast<unsigned char>(sequence[0]);
  uint32_t code = static_cast<unsigned char>(sequence[0]) & (0x7Fu >> sequence.size());
  for (const char byte : sequence.substr(1)) code = code << 6 | (static_cast<unsigned char>(byte) & 0x3Fu);
  return code;
}

// Some terminals treat C1 controls as escape sequences; the others are invisible or change the text direction.
bool is_invisible(uint32_t code) {
  return (code >= 0x80 && code < 0xA0) || (code >= 0x200B && code <= 0x200F) || (code >= 0x2028 && code <= 0x202E) ||
         (code >= 0x2060 && code <= 0x206F) || code == 0xFEFF;
}

std::string escape(uint32_t code, bool is_byte) {
  char text[16];
  std::snprintf(text, sizeof text, is_byte ? "\\x%02x" : "\\u%04x", code);
  return text;
}

std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%^";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string text = "'";
  for (const char letter : word) text += letter == '\'' ? "'\\''" : std::string(1, letter);
  return text + "'";
}

enum class Style { quoted, line, lines };

void append_escaped(std::string* out, std::string_view sequence, Style style) {
  const uint32_t code = code_point(sequence);
  if (code == '\n') {
    *out += style == Style::lines ? "\n" : "\\n";
  } else if (code == '\t' || code == '\r') {
    *out += code == '\t' ? "\\t" : "\\r";
  } else if (code < 0x20 || code == 0x7F) {
    *out += escape(code, true);
  } else if (is_invisible(code)) {
    *out += escape(code, false);
  } else if (style == Style::quoted && (code == '\'' || code == '\\')) {
    *out += '\\';
    *out += sequence;
  } else {
    *out += sequence;
  }
}

// Returns |text| escaped, truncated to |longest| bytes without splitting a character.
std::string escaped(std::string_view text, size_t longest, Style style) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_length(text.substr(at, 4));
    if (at + (length == 0 ? 1 : length) > longest) return out + "...";
    if (length == 0) {
      out += escape(static_cast<unsigned char>(text[at]), true);
    } else {
      append_escaped(&out, text.substr(at, length), style);
    }
    at += length == 0 ? 1 : length;
  }
  return out;
}

std::string size_note(std::string_view text, size_t longest) {
  if (text.size() <= longest) return "";
  std::string note = " (";
  return note.append(std::to_string(text.size())).append(" bytes)");
}

}  // namespace

std::string quoted(std::string_view text) {
  std::string out = "'";
  out += escaped(text, kMaxQuoted, Style::quoted);
  out += '\'';
  return out + size_note(text, kMaxQuoted);
}

std::string one_line(std::string_view text, size_t longest) {
  return escaped(text, longest, Style::line) + size_note(text, longest);
}

std::string printable(std::string_view text, size_t longest) {
  return escaped(text, longest, Style::lines) + size_note(text, longest);
}

std::string shell_command(const std::vector<std::string>& words) {
  std::string command;
  for (const std::string& word : words) command += (command.empty() ? "" : " ") + shell_word(word);
  return command;
}

}  // namespace concord
