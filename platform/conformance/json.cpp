#include "platform/conformance/json.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

namespace concord::conformance {
namespace {

constexpr int kDeepest = 64;  // no document of ours is deeper; ends a recursion that a broken file would start

class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text) {}

  Json document() {
    Json value = parse_value(0);
    skip_space();
    if (at_ != text_.size()) fail("the end");
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& expected) const {
    int line = 1;
    for (size_t i = 0; i < at_ && i < text_.size(); ++i) line += text_[i] == '\n' ? 1 : 0;
    throw std::runtime_error("JSON, line " + std::to_string(line) + ": expected " + expected);
  }

  void skip_space() {
    while (at_ < text_.size() && std::string(" \t\r\n").find(text_[at_]) != std::string::npos) ++at_;
  }

  char peek() {
    skip_space();
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  bool take(char wanted) {
    if (peek() != wanted) return false;
    ++at_;
    return true;
  }

  void need(char wanted) {
    if (!take(wanted)) fail(std::string("'") + wanted + "'");
  }

  Json word(const char* spelling, Json value) {
    const std::string wanted = spelling;
    if (text_.compare(at_, wanted.size(), wanted) != 0) fail("a value");
    at_ += wanted.size();
    return value;
  }

  Json parse_value(int depth) {
    if (depth > kDeepest) fail("fewer nested lists and objects");
    switch (peek()) {
      case '{': return parse_object(depth);
      case '[': return parse_list(depth);
      case '"': return Json(parse_text());
      case 't': return word("true", Json(true));
      case 'f': return word("false", Json(false));
      case 'n': return word("null", Json());
      default: return parse_number();
    }
  }

  Json parse_object(int depth) {
    Json object = Json::object();
    need('{');
    if (take('}')) return object;
    do {
      if (peek() != '"') fail("a name in quotes");
      std::string name = parse_text();
      need(':');
      object.set(name, parse_value(depth + 1));
    } while (take(','));
    need('}');
    return object;
  }

  Json parse_list(int depth) {
    Json list = Json::list();
    need('[');
    if (take(']')) return list;
    do {
      list.append(parse_value(depth + 1));
    } while (take(','));
    need(']');
    return list;
  }

  Json parse_number() {
    const char* begin = text_.c_str() + at_;
    if (*begin != '-' && (*begin < '0' || *begin > '9')) fail("a value");
    char* end = nullptr;
    const double value = std::strtod(begin, &end);
    if (end == begin) fail("a number");
    at_ += static_cast<size_t>(end - begin);
    return Json(value);
  }

  std::string parse_text() {
    need('"');
    std::string result;
    while (at_ < text_.size() && text_[at_] != '"') {
      if (text_[at_] != '\\') {
        result += text_[at_++];
      } else {
        ++at_;
        parse_escape(result);
      }
    }
    if (at_ >= text_.size()) fail("'\"'");
    ++at_;
    return result;
  }

  void parse_escape(std::string& result) {
    const char kind = at_ < text_.size() ? text_[at_++] : '\0';
    static const std::map<char, char> plain = {{'"', '"'},  {'\\', '\\'}, {'/', '/'},  {'b', '\b'},
                                               {'f', '\f'}, {'n', '\n'},  {'r', '\r'}, {'t', '\t'}};
    if (const auto found = plain.find(kind); found != plain.end()) {
      result += found->second;
    } else if (kind == 'u' && at_ + 4 <= text_.size()) {
      append_utf8(static_cast<uint32_t>(std::strtoul(text_.substr(at_, 4).c_str(), nullptr, 16)), result);
      at_ += 4;
    } else {
      fail("an escape: one of \" \\ / b f n r t uXXXX");
    }
  }

  static void append_utf8(uint32_t code, std::string& result) {
    if (code < 0x80) {
      result += static_cast<char>(code);
    } else if (code < 0x800) {
      result += static_cast<char>(0xc0 | (code >> 6));
      result += static_cast<char>(0x80 | (code & 0x3f));
    } else {
      result += static_cast<char>(0xe0 | (code >> 12));
      result += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
      result += static_cast<char>(0x80 | (code & 0x3f));
    }
  }

  const std::string& text_;
  size_t at_ = 0;
};

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (c == '\n') {
      result += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(static_cast<unsigned char>(c)));
      result += escape;
    } else {
      result += c;
    }
  }
  return result + "\"";
}

std::string number_text(double value) {
  if (!std::isfinite(value)) return "null";  // JSON has no other way to say it
  char text[32];
  std::snprintf(text, sizeof text, value == std::floor(value) && std::fabs(value) < 1e15 ? "%.0f" : "%.6g", value);
  return text;
}

}  // namespace

Json Json::parse(const std::string& text) { return Parser(text).document(); }

const Json& Json::operator[](const std::string& name) const {
  static const Json nothing;
  for (const auto& [known, value] : members_) {
    if (known == name) return value;
  }
  return nothing;
}

std::string Json::write(int indent, int level) const {
  switch (kind_) {
    case Kind::kNull: return "null";
    case Kind::kBool: return number_ != 0 ? "true" : "false";
    case Kind::kNumber: return number_text(number_);
    case Kind::kText: return quoted(text_);
    default: break;
  }
  const bool is_list = kind_ == Kind::kList;
  const size_t count = is_list ? items_.size() : members_.size();
  if (count == 0) return is_list ? "[]" : "{}";
  const auto new_line = [indent](int depth) {
    std::string line;
    if (indent > 0) line.assign(1, '\n').append(static_cast<size_t>(indent * depth), ' ');
    return line;
  };
  std::string result = is_list ? "[" : "{";
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) result += indent > 0 ? "," : ", ";
    result += new_line(level + 1);
    result += is_list ? items_[i].write(indent, level + 1)
                      : quoted(members_[i].first) + ": " + members_[i].second.write(indent, level + 1);
  }
  return result + new_line(level) + (is_list ? "]" : "}");
}

}  // namespace concord::conformance
