#include "trainer/data/text/text_reader.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "core/base/config_error.h"
#include "core/base/parse_json.h"
#include "core/base/quoted.h"
#include "core/base/utf8.h"
#include "trainer/data/media/media_parts.h"
#include "trainer/data/token_batch.h"

namespace concord {
namespace {

using nlohmann::json;

constexpr std::string_view kKinds =
    R"(a line must be {"text": ...}, {"input_ids": [...], "labels": [...]}, {"messages": [...]}, )"
    R"({"conversations": [...]}, {"prompt": ..., "completion": ...}, {"instruction": ..., "output": ...} or )"
    R"({"prompt": ..., "chosen": ..., "rejected": ...})";

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

// Formats a value for a message; a list by its type (printing a deeply nested one would need as much stack).
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

TokensAndLabels parse_tokens(const json& record, const std::string& place) {
  TokensAndLabels tokens;
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

// Returns the text at |key|; empty if there is none.
std::string text_at(const json& record, const char* key, const std::string& place) {
  if (!record.contains(key) || record[key].is_null()) return "";
  if (!record[key].is_string()) throw ConfigError(fmt::format("{}: \"{}\" is not a string", place, key));
  return record[key].get<std::string>();
}

// Roles are checked by the template. Content may be missing if there are tool calls, or be a list of parts.
json checked_messages(const json& list, const char* key, const std::string& place) {
  if (!list.is_array() || list.empty())
    throw ConfigError(fmt::format("{}: \"{}\" is not a list of messages", place, key));
  for (size_t i = 0; i < list.size(); ++i) {
    const json& message = list[i];
    const bool has_role = message.is_object() && message.contains("role") && message["role"].is_string();
    const bool has_content = has_role && ((message.contains("content") && !message["content"].is_number()) ||
                                          message.contains("tool_calls"));
    if (!has_content) {
      throw ConfigError(fmt::format("{}: message {} has no string \"{}\"; expected {{\"role\": ..., \"content\": ...}}",
                                    place, i, has_role ? "content" : "role"));
    }
  }
  return list;
}

json message_of(const char* role, std::string content) { return {{"role", role}, {"content", std::move(content)}}; }

// Converts ShareGPT's names, like LLaMA-Factory.
json sharegpt_messages(const json& record, const std::string& place) {
  const json& list = record["conversations"];
  if (list.is_array() && !list.empty() && list[0].is_object() && list[0].contains("role")) {
    return checked_messages(list, "conversations", place);
  }
  if (!list.is_array() || list.empty()) throw ConfigError(place + ": \"conversations\" is not a list of messages");
  static const std::map<std::string, const char*> kRoles = {
      {"human", "user"},    {"user", "user"},        {"gpt", "assistant"}, {"assistant", "assistant"},
      {"system", "system"}, {"observation", "tool"}, {"tool", "tool"}};
  json messages = json::array();
  if (const std::string system = text_at(record, "system", place); !system.empty()) {
    messages.push_back(message_of("system", system));
  }
  for (const json& each : list) {
    const bool is_message = each.is_object() && each.contains("from") && each["from"].is_string() &&
                            each.contains("value") && each["value"].is_string();
    const auto role = is_message ? kRoles.find(each["from"].get<std::string>()) : kRoles.end();
    if (role == kRoles.end()) {
      throw ConfigError(fmt::format(
          "{}: conversation turn {} must be {{\"from\": ..., \"value\": ...}} from human, gpt, system or "
          "observation{}; other turns need \"messages\"",
          place, &each - &list[0], is_message ? ", not from " + quoted(each["from"].get<std::string>()) : ""));
    }
    messages.push_back(message_of(role->second, each["value"].get<std::string>()));
  }
  return messages;
}

json alpaca_messages(const json& record, const std::string& place) {
  json messages = json::array();
  if (const std::string system = text_at(record, "system", place); !system.empty()) {
    messages.push_back(message_of("system", system));
  }
  if (record.contains("history") && record["history"].is_array()) {
    for (const json& turn : record["history"]) {
      if (!turn.is_array() || turn.size() != 2 || !turn[0].is_string() || !turn[1].is_string()) {
        throw ConfigError(place + ": \"history\" is not a list of [question, answer]");
      }
      messages.push_back(message_of("user", turn[0].get<std::string>()));
      messages.push_back(message_of("assistant", turn[1].get<std::string>()));
    }
  }
  const std::string input = text_at(record, "input", place), instruction = text_at(record, "instruction", place);
  messages.push_back(message_of("user", input.empty() ? instruction : instruction + "\n" + input));
  messages.push_back(message_of("assistant", text_at(record, "output", place)));
  return messages;
}

// Texts stay separate; messages of the prompt are not trained on.
json pair_sample(const json& record, const std::string& place) {
  const json &prompt = record["prompt"], &completion = record["completion"];
  if (prompt.is_string() && completion.is_string()) return {{"prompt", prompt}, {"completion", completion}};
  json messages = checked_messages(prompt, "prompt", place);
  const size_t read_only = messages.size();
  for (const json& message : checked_messages(completion, "completion", place)) messages.push_back(message);
  return {{"messages", messages}, {"learn_from", read_only}};
}

// Returns the length of the common prefix of two lists of messages, or two texts: the prompt, as in TRL's
// extract_prompt. For texts it ends at a character boundary; a space before it belongs to the completions. If one is a
// prefix of the other, its last element is still left for the completion.
template <class List>
size_t common_prefix(const List& a, const List& b) {
  const size_t shorter = std::min(a.size(), b.size());
  for (size_t i = 0; i < shorter; ++i) {
    if (a[i] != b[i]) return i;
  }
  return shorter - 1;
}

size_t common_text(const std::string& chosen, const std::string& rejected) {
  size_t end = common_prefix(chosen, rejected);
  const auto continues = [](char letter) { return (static_cast<uint8_t>(letter) & 0xC0) == 0x80; };
  while (end > 0 && (continues(chosen[end]) || continues(rejected[end]))) --end;
  return end > 0 && chosen[end - 1] == ' ' ? end - 1 : end;
}

json part_of(const json& list, size_t begin, size_t end) {
  json part = json::array();
  for (size_t i = begin; i < end; ++i) part.push_back(list[i]);
  return part;
}

struct Preference {
  json prompt, chosen, rejected;  // texts, or lists of messages
};

Preference preference_of(const json& record, const std::string& place) {
  const json &chosen = record["chosen"], &rejected = record["rejected"];
  const bool has_prompt = record.contains("prompt") && !record["prompt"].is_null();
  if (chosen.is_string() && rejected.is_string() && (!has_prompt || record["prompt"].is_string())) {
    if (has_prompt) return {record["prompt"], chosen, rejected};
    const auto &better = chosen.get_ref<const std::string&>(), &worse = rejected.get_ref<const std::string&>();
    if (better.empty() || worse.empty()) throw ConfigError(place + ": \"chosen\" or \"rejected\" is empty");
    const size_t end = common_text(better, worse);
    return {better.substr(0, end), better.substr(end), worse.substr(end)};
  }
  const auto refuse_mixture = [&](const json& value, const char* key) {
    if (value.is_array()) return;
    throw ConfigError(
        fmt::format("{}: \"{}\" is {}; \"prompt\", \"chosen\" and \"rejected\" must all be texts, or all "
                    "lists of messages",
                    place, key, value.type_name()));
  };
  refuse_mixture(chosen, "chosen");
  refuse_mixture(rejected, "rejected");
  const json better = checked_messages(chosen, "chosen", place), worse = checked_messages(rejected, "rejected", place);
  if (has_prompt) {
    refuse_mixture(record["prompt"], "prompt");
    return {checked_messages(record["prompt"], "prompt", place), better, worse};
  }
  const size_t end = common_prefix(better, worse);
  return {part_of(better, 0, end), part_of(better, end, better.size()), part_of(worse, end, worse.size())};
}

JsonRecord pair_of_texts(const json& record, const std::string& place) {
  for (const char* other : {"rejected_images", "rejected_videos"}) {
    if (!record.contains(other) || record[other].empty()) continue;
    throw ConfigError(
        fmt::format("{}: has \"{}\", but both answers are to the images and videos of the prompt; remove such records",
                    place, other));
  }
  Preference given = preference_of(record, place);
  JsonRecord pair{.kind = JsonRecord::Kind::kPair};
  json none = json::array();
  pair.media = take_media(record, place, given.prompt.is_array() ? &given.prompt : &none);
  const auto half = [&](const json& completion, const json& other) {
    json sample = {{"prompt", given.prompt}, {"completion", completion}, {"other", other}};
    if (record.contains("tools") && record["tools"].is_array()) sample["tools"] = record["tools"];
    return sample.dump();
  };
  pair.text = half(given.chosen, given.rejected);
  pair.rejected_text = half(given.rejected, given.chosen);
  return pair;
}

JsonRecord pair_of_tokens(const json& record, const std::string& place) {
  const std::vector<int64_t> prompt = parse_ids(record["prompt_input_ids"], "prompt_input_ids", place);
  const auto joined = [&](const char* key) {
    const std::vector<int64_t> completion = parse_ids(record[key], key, place);
    if (completion.empty()) throw ConfigError(fmt::format("{}: \"{}\" is empty", place, key));
    TokensAndLabels tokens{.ids = prompt, .labels = std::vector<int64_t>(prompt.size(), kIgnoredToken)};
    tokens.ids.insert(tokens.ids.end(), completion.begin(), completion.end());
    tokens.labels.insert(tokens.labels.end(), completion.begin(), completion.end());
    return tokens;
  };
  JsonRecord pair{.kind = JsonRecord::Kind::kPair, .tokens = joined("chosen_input_ids")};
  pair.rejected_tokens = joined("rejected_input_ids");
  return pair;
}

JsonRecord with_margin(JsonRecord pair, const json& record, const std::string& place) {
  if (!record.contains("margin") || record["margin"].is_null()) return pair;
  const json& margin = record["margin"];
  if (!margin.is_number() || !std::isfinite(margin.get<double>())) {
    throw ConfigError(fmt::format("{}: \"margin\" is {}; must be a number", place, shown(margin)));
  }
  pair.margin = margin.get<double>();
  return pair;
}

// Copying and printing JSON uses stack for each level.
void check_depth(std::string_view line, const std::string& place) {
  constexpr int kMaxDepth = 64;
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (in_string && line[i] == '\\') {
      ++i;
    } else if (line[i] == '"') {
      in_string = !in_string;
    } else if (!in_string && (line[i] == '[' || line[i] == '{')) {
      if (++depth > kMaxDepth) throw ConfigError(fmt::format("{}: is nested deeper than {} levels", place, kMaxDepth));
    } else if (!in_string && (line[i] == ']' || line[i] == '}')) {
      --depth;
    }
  }
}

// |record| has exactly one of the kinds of content, which parse_json_record() counts by the same conditions.
JsonRecord sample_of(const json& record, const std::string& place) {
  json sample = json::object();
  const auto has = [&](const char* key) { return record.contains(key) && !record[key].is_null(); };
  if (has("prompt") && has("completion")) {
    sample = pair_sample(record, place);
  } else if (has("messages")) {
    sample["messages"] = checked_messages(record["messages"], "messages", place);
  } else if (has("conversations")) {
    sample["messages"] = sharegpt_messages(record, place);
  } else {
    sample["messages"] = alpaca_messages(record, place);
  }
  if (record.contains("tools") && record["tools"].is_array()) sample["tools"] = record["tools"];
  JsonRecord result{.kind = JsonRecord::Kind::kSample};
  json none = json::array();
  result.media = take_media(record, place, sample.contains("messages") ? &sample["messages"] : &none);
  result.text = sample.dump();
  return result;
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
    case JsonRecord::Kind::kSample: return "messages";
    case JsonRecord::Kind::kPair: return "chosen";
  }
  return "unknown";
}

JsonRecord parse_json_record(std::string_view line, const std::string& place) {
  const json record = parse_json(line, place);
  if (!record.is_object()) throw ConfigError(fmt::format("{}: not a JSON object; {}", place, kKinds));
  // A table has the same columns for all records, null if a record has no value.
  const auto has = [&](const char* key) { return record.contains(key) && !record[key].is_null() ? 1 : 0; };
  const int completion = has("prompt") * has("completion"), alpaca = has("instruction") * has("output");
  const int pair = has("chosen") * has("rejected");
  const int pair_ids = has("prompt_input_ids") * has("chosen_input_ids") * has("rejected_input_ids");
  if (has("text") + has("input_ids") + has("messages") + has("conversations") + completion + alpaca + pair + pair_ids !=
      1) {
    throw ConfigError(fmt::format("{}: must have exactly one kind of content; {}", place, kKinds));
  }
  if (pair_ids != 0) return with_margin(pair_of_tokens(record, place), record, place);
  if (has("input_ids") != 0) return {.kind = JsonRecord::Kind::kTokens, .tokens = parse_tokens(record, place)};
  if (has("text") == 0) check_depth(line, place);
  if (pair != 0) return with_margin(pair_of_texts(record, place), record, place);
  if (has("text") == 0) return sample_of(record, place);
  if (!record["text"].is_string()) throw ConfigError(place + ": \"text\" is not a string");
  return {.kind = JsonRecord::Kind::kText, .text = record["text"].get<std::string>()};
}

JsonRecord parse_json_record(std::string_view line, const std::string& place,
                             const std::optional<DatasetInfo>& dataset) {
  if (!dataset) return parse_json_record(line, place);
  return parse_json_record(dataset->standard_line(line, place), place);
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

std::string_view first_lines(std::string_view text, int64_t most) {
  if (most == 0) return text;
  size_t begin = 0;
  while (begin < text.size() && most > 0) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (!is_blank(text.substr(begin, end - begin))) --most;
    begin = end + 1;
  }
  return text.substr(0, begin);
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
