#include "trainer/arguments/toml.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/config_error.h"

namespace concord {
namespace {

constexpr std::string_view kSpaces = " \t\r";

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

// Reads one line; the rest shrinks as it is consumed.
class LineReader {
 public:
  LineReader(std::string_view line, std::string where) : rest_(trimmed(line)), where_(std::move(where)) {}

  bool at_end() const { return rest_.empty() || rest_.front() == '#'; }
  bool take(char letter) {
    if (!rest_.starts_with(letter)) return false;
    rest_ = trimmed(rest_.substr(1));
    return true;
  }
  void expect(char letter) {
    if (!take(letter)) refuse(fmt::format("expected '{}'", letter));
  }
  void expect_end() const {
    if (!at_end()) refuse("unexpected text after the value");
  }

  std::string name() {
    const size_t end = std::min(
        rest_.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-."), rest_.size());
    if (end == 0) refuse("expected a name");
    return take_letters(end);
  }

  ArgumentValue value() {
    if (!take('[')) return scalar();
    ArgumentValue list{.form = ArgumentValue::Form::list};
    while (!take(']')) {
      if (at_end()) refuse("a list must end on the line it starts on");
      list.items.push_back(scalar().text);
      if (!take(',') && !rest_.starts_with(']')) refuse("expected ',' or ']'");
    }
    return list;
  }

 private:
  [[noreturn]] void refuse(std::string_view why) const {
    throw ConfigError(fmt::format("{}: {} at '{}'; only [sections] and `name = value` lines are supported", where_, why,
                                  rest_.substr(0, 40)));
  }

  std::string take_letters(size_t count) {
    std::string text(trimmed(rest_.substr(0, count)));
    rest_ = trimmed(rest_.substr(count));
    return text;
  }

  ArgumentValue scalar() {
    if (rest_.starts_with("\"\"\"") || rest_.starts_with("'''")) refuse("multi-line strings are not supported");
    if (rest_.starts_with('"') || rest_.starts_with('\'')) return {.text = quoted_text(), .quoted = true};
    std::string text = take_letters(std::min(rest_.find_first_of(",]#{ \t"), rest_.size()));
    if (text.empty()) refuse("expected a value");
    const bool is_number = text.find_first_not_of("+-.0123456789_eE") == std::string::npos;
    if (is_number) std::erase(text, '_');  // 10_000
    return {.text = text};
  }

  std::string quoted_text() {
    const char quote = rest_.front();
    std::string text;
    for (size_t i = 1; i < rest_.size(); ++i) {
      if (rest_[i] == quote) {
        rest_ = trimmed(rest_.substr(i + 1));
        return text;
      }
      const bool is_escape = quote == '"' && rest_[i] == '\\';
      if (is_escape && (++i == rest_.size() || (rest_[i] != '"' && rest_[i] != '\\')))
        refuse("unknown escape (only \\\" and \\\\ are supported)");
      text += rest_[i];
    }
    refuse("unterminated string");
  }

  std::string_view rest_;
  std::string where_;
};

}  // namespace

std::vector<YamlEntry> parse_toml(std::string_view text, const std::string& file) {
  if (text.size() > kMaxYaml) {
    throw ConfigError(
        fmt::format("{}: file has {} bytes; the limit for a configuration is {}", file, text.size(), kMaxYaml));
  }
  reject_control_characters(text, file);
  std::vector<YamlEntry> entries;
  std::string section;
  int number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    LineReader line(text.substr(0, end), fmt::format("{}:{}", file, ++number));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.at_end()) continue;
    if (line.take('[')) {
      section = line.name() + ".";
      line.expect(']');
    } else {
      std::string name = section + line.name();
      line.expect('=');
      entries.push_back({.name = std::move(name), .value = line.value(), .line = number});
    }
    line.expect_end();
  }
  return entries;
}

}  // namespace concord
