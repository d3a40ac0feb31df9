#include "trainer/data/text_reader.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/config_error.h"
#include "core/parse_json.h"
#include "core/quoted.h"
#include "core/utf8.h"
#include "trainer/data/token_batch.h"

namespace concord {
namespace {

using nlohmann::json;

constexpr std::string_view kKinds =
    R"(a line must be {"text": ...}, {"input_ids": [...], "labels": [...]} or {"messages": [...]})";

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

// A value as shown in a message; a list by its type (printing a deeply nested one would need as much stack).
std::string shown(const json& value) {
  return value.is_structured() ? std::string("an ") + value.type_name() : one_line(value.dump(-1, ' ', true));
}

std::vector<int64_t> parse_ids(const json& array, const char* key, const std::string& place) {
  if (!array.is_array()) throw ConfigError(fmt::format("{}: \"{}\" is not a list of token ids", place, key));
  std::vector<int64_t> ids;
  ids.reserve(array.size());
  for (const json& value : array) {
    const bool whole =
        value.is_number_integer() &&
        !(value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{std::numeric_limits<int32_t>::max()});
    if (!whole)
      throw ConfigError(fmt::format("{}: \"{}\"[{}] is {}, not a token id", place, key, ids.size(), shown(value)));
    ids.push_back(value.get<int64_t>());
  }
  return ids;
}

AlignedTokens parse_tokens(const json& record, const std::string& place) {
  AlignedTokens tokens;
  tokens.ids = parse_ids(record["input_ids"], "input_ids", place);
  if (tokens.ids.empty()) throw ConfigError(place + ": \"input_ids\" is empty");
  tokens.labels = record.contains("labels") ? parse_ids(record["labels"], "labels", place) : tokens.ids;
  if (tokens.labels.size() != tokens.ids.size()) {
    throw ConfigError(
        fmt::format("{}: \"labels\" has {} entries, but \"input_ids\" has {}; give one label per id, -100 to ignore it",
                    place, tokens.labels.size(), tokens.ids.size()));
  }
  for (size_t i = 0; i < tokens.ids.size(); ++i) {
    if (tokens.ids[i] < 0)
      throw ConfigError(fmt::format("{}: \"input_ids\"[{}] is {}, not a token id", place, i, tokens.ids[i]));
    if (tokens.labels[i] < 0 && tokens.labels[i] != kIgnoredToken) {
      throw ConfigError(fmt::format("{}: \"labels\"[{}] is {}; must be a token id, or -100 to ignore it", place, i,
                                    tokens.labels[i]));
    }
  }
  return tokens;
}

std::vector<ChatMessage> parse_messages(const json& list, const std::string& place) {
  if (!list.is_array() || list.empty()) throw ConfigError(place + ": \"messages\" is not a list of messages");
  std::vector<ChatMessage> messages;
  for (const json& message : list) {
    const auto text = [&](const char* key) {
      if (!message.is_object() || !message.contains(key) || !message[key].is_string()) {
        throw ConfigError(
            fmt::format("{}: message {} has no string \"{}\"; expected {{\"role\": ..., \"content\": ...}}", place,
                        messages.size(), key));
      }
      return message[key].get<std::string>();
    };
    messages.push_back({text("role"), text("content")});
  }
  return messages;
}

}  // namespace

std::optional<size_t> invalid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight = 0;  // most text is ASCII: eight bytes at a time
    if (text.size() - at >= sizeof eight) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    const size_t length = utf8_length(text.substr(at, 4));
    if (length == 0) return at;
    at += length;
  }
  return std::nullopt;
}

bool is_valid_text(std::string_view text) { return text.find('\0') == std::string_view::npos && !invalid_utf8(text); }

void check_text(std::string_view text, const std::string& file, int64_t first_line) {
  const size_t zero = text.find('\0');
  const std::optional<size_t> wrong = zero == std::string_view::npos ? invalid_utf8(text) : zero;
  if (!wrong) return;
  const int64_t line = first_line + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(*wrong), '\n');
  if (zero != std::string_view::npos) {
    throw ConfigError(fmt::format("{}, line {}: contains a zero byte; the file is damaged or not text", file, line));
  }
  throw ConfigError(fmt::format("{}, line {}: the byte 0x{:02X} is not valid UTF-8 here; convert the file to UTF-8",
                                file, line, static_cast<uint8_t>(text[*wrong])));
}

const char* to_string(JsonRecord::Kind kind) {
  switch (kind) {
    case JsonRecord::Kind::kText: return "text";
    case JsonRecord::Kind::kTokens: return "input_ids";
    case JsonRecord::Kind::kChat: return "messages";
  }
  return "unknown";
}

JsonRecord parse_json_record(std::string_view line, const std::string& place) {
  const json record = parse_json(line, place);
  if (!record.is_object()) throw ConfigError(fmt::format("{}: not a JSON object; {}", place, kKinds));
  const auto has = [&](const char* key) { return record.contains(key) ? 1 : 0; };
  if (has("text") + has("input_ids") + has("messages") != 1) {
    throw ConfigError(
        fmt::format("{}: must have exactly one of \"text\", \"input_ids\" and \"messages\"; {}", place, kKinds));
  }
  if (has("input_ids") != 0) return {.kind = JsonRecord::Kind::kTokens, .tokens = parse_tokens(record, place)};
  if (has("messages") != 0)
    return {.kind = JsonRecord::Kind::kChat, .messages = parse_messages(record["messages"], place)};
  if (!record["text"].is_string()) throw ConfigError(place + ": \"text\" is not a string");
  return {.kind = JsonRecord::Kind::kText, .text = record["text"].get<std::string>()};
}

void for_each_line(std::string_view text, const std::function<void(std::string_view line, int64_t number)>& each) {
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    ++number;
    const std::string_view line = text.substr(begin, end - begin);
    if (!is_blank(line)) each(line, number);
    begin = end + 1;
  }
}

void for_each_paragraph(std::string_view text,
                        const std::function<void(std::string_view document, int64_t line)>& each) {
  std::string_view document;
  int64_t first_line = 0, number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    ++number;
    const std::string_view line = text.substr(begin, end - begin);
    if (is_blank(line)) {
      if (!document.empty()) each(document, first_line);
      document = {};
    } else if (document.empty()) {
      document = line;
      first_line = number;
    } else {
      document = std::string_view(document.data(), static_cast<size_t>(line.data() + line.size() - document.data()));
    }
    begin = end + 1;
  }
  if (!document.empty()) each(document, first_line);
}

}  // namespace concord
