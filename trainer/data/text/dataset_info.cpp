#include "trainer/data/text/dataset_info.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <set>
#include <vector>

#include "core/base/config_error.h"
#include "core/base/files/input_file.h"
#include "core/base/parse_json.h"
#include "core/base/quoted.h"

namespace concord {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxBytes = 64 << 20;

std::string text_of(const json& value, const std::string& place) {
  if (!value.is_string()) throw ConfigError(place + ": must be a string");
  return value.get<std::string>();
}

std::map<std::string, std::string> texts_of(const json& entry, const char* key,
                                            std::map<std::string, std::string> texts,
                                            const std::set<std::string>& known, const std::string& place) {
  if (!entry.contains(key)) return texts;
  if (!entry[key].is_object()) throw ConfigError(fmt::format("{}: \"{}\" must be an object", place, key));
  for (const auto& [name, value] : entry[key].items()) {
    if (!known.contains(name)) {
      throw ConfigError(fmt::format("{}: {} are not supported in \"{}\": \"{}\"; supported: {}", place,
                                    std::string(key) == "tags" ? "such tags" : "such columns", key, name,
                                    fmt::join(known, ", ")));
    }
    texts[name] = text_of(value, fmt::format("{}, \"{}\", \"{}\"", place, key, name));
  }
  return texts;
}

DatasetInfo parse_entry(const json& entry, const std::string& folder, const std::string& place) {
  static const std::set<std::string> kKeys = {"file_name", "formatting", "ranking", "columns", "tags"};
  static const std::set<std::string> kColumns = {"prompt", "query",  "response", "history",  "system", "tools",
                                                 "images", "videos", "audios",   "messages", "chosen", "rejected"};
  static const std::set<std::string> kTags = {"role_tag",        "content_tag",  "user_tag",  "assistant_tag",
                                              "observation_tag", "function_tag", "system_tag"};
  if (!entry.is_object()) throw ConfigError(place + ": must be an object");
  for (const auto& [key, value] : entry.items()) {
    if (!kKeys.contains(key)) {
      throw ConfigError(
          fmt::format("{}: \"{}\" is not supported; supported: {}. Download the data first, and name the file", place,
                      key, fmt::join(kKeys, ", ")));
    }
  }
  if (!entry.contains("file_name")) throw ConfigError(place + ": has no \"file_name\"");
  DatasetInfo info;
  info.file = (std::filesystem::path(folder) / text_of(entry["file_name"], place + ", \"file_name\"")).string();
  const std::string formatting =
      entry.contains("formatting") ? text_of(entry["formatting"], place + ", \"formatting\"") : "alpaca";
  if (formatting != "alpaca" && formatting != "sharegpt")
    throw ConfigError(fmt::format("{}: \"formatting\" is {}; must be alpaca or sharegpt", place, quoted(formatting)));
  info.is_sharegpt = formatting == "sharegpt";
  if (entry.contains("ranking") && !entry["ranking"].is_boolean())
    throw ConfigError(place + ": \"ranking\" must be true or false");
  info.ranking = entry.value("ranking", false);
  info.columns =
      texts_of(entry, "columns",
               {{"prompt", "instruction"}, {"query", "input"}, {"response", "output"}, {"messages", "conversations"}},
               kColumns, place);
  info.tags = texts_of(entry, "tags",
                       {{"role_tag", "from"},
                        {"content_tag", "value"},
                        {"user_tag", "human"},
                        {"assistant_tag", "gpt"},
                        {"observation_tag", "observation"},
                        {"function_tag", "function_call"},
                        {"system_tag", "system"}},
                       kTags, place);
  if (info.ranking && (!info.columns.contains("chosen") || !info.columns.contains("rejected")))
    throw ConfigError(place + ": \"ranking\" needs \"chosen\" and \"rejected\" in \"columns\"");
  return info;
}

// One record of a data set.
class Record {
 public:
  Record(const DatasetInfo& info, std::string_view line, std::string place)
      : info_(info), record_(parse_json(line, place)), place_(std::move(place)) {
    if (!record_.is_object()) throw ConfigError(place_ + ": not a JSON object");
  }

  json standard() const {
    json result = info_.is_sharegpt ? from_sharegpt() : from_alpaca();
    if (const json* tools = value("tools"); tools != nullptr && !result.contains("text"))
      result["tools"] = parsed(*tools);
    for (const char* media : {"images", "videos", "audios"}) {
      if (const json* found = value(media)) result[media] = *found;
    }
    return result;
  }

 private:
  // Returns the value in the column for |name|; null if there is none.
  const json* value(const std::string& name) const {
    const auto column = info_.columns.find(name);
    if (column == info_.columns.end() || !record_.contains(column->second)) return nullptr;
    const json& found = record_[column->second];
    return found.is_null() || (found.is_string() && found.get_ref<const std::string&>().empty()) ? nullptr : &found;
  }
  std::string text(const std::string& name) const {
    const json* found = value(name);
    return found == nullptr ? "" : text_of(*found, fmt::format("{}: \"{}\"", place_, info_.columns.at(name)));
  }
  const json& needed(const std::string& name) const {
    const json* found = value(name);
    if (found != nullptr) return *found;
    throw ConfigError(
        fmt::format("{}: has no \"{}\", which is the column {} of the data set", place_, info_.columns.at(name), name));
  }
  // LLaMA-Factory stores tools as text.
  json parsed(const json& tools) const {
    return tools.is_string() ? parse_json(tools.get<std::string>(), place_ + ", tools") : tools;
  }
  static json message(const std::string& role, const std::string& content) {
    return {{"role", role}, {"content", content}};
  }

  json from_alpaca() const {
    if (info_.columns.size() == 1 && info_.columns.contains("prompt")) {  // texts, which may be empty
      return {
          {"text", record_.contains(info_.columns.at("prompt")) ? text("prompt") : text_of(needed("prompt"), place_)}};
    }
    const std::string prompt = text("prompt"), query = text("query");
    if (!info_.ranking && value("response") == nullptr && query.empty() && value("history") == nullptr &&
        !prompt.empty())
      return {{"text", prompt}};
    json messages = json::array();
    if (const std::string system = text("system"); !system.empty()) messages.push_back(message("system", system));
    if (const json* history = value("history")) {
      if (!history->is_array()) throw ConfigError(place_ + ": the history is not a list");
      for (const json& turn : *history) {
        if (!turn.is_array() || turn.size() != 2)
          throw ConfigError(place_ + ": a turn of the history is not [prompt, response]");
        messages.push_back(message("user", text_of(turn[0], place_ + ": a prompt of the history")));
        messages.push_back(message("assistant", text_of(turn[1], place_ + ": a response of the history")));
      }
    }
    messages.push_back(message("user", prompt + (prompt.empty() || query.empty() ? "" : "\n") + query));
    if (!info_.ranking) {
      messages.push_back(message("assistant", text_of(needed("response"), place_ + ": the response")));
      return {{"messages", messages}};
    }
    const auto answer = [&](const char* name) {
      return json::array({message("assistant", text_of(needed(name), fmt::format("{}: {}", place_, name)))});
    };
    return {{"prompt", messages}, {"chosen", answer("chosen")}, {"rejected", answer("rejected")}};
  }

  json converted(const json& turn) const {
    const std::string &role_tag = info_.tags.at("role_tag"), &content_tag = info_.tags.at("content_tag");
    if (!turn.is_object() || !turn.contains(role_tag) || !turn.contains(content_tag)) {
      throw ConfigError(
          fmt::format("{}: a message must be {{\"{}\": ..., \"{}\": ...}}", place_, role_tag, content_tag));
    }
    const std::string role = text_of(turn[role_tag], place_ + ": the role of a message");
    const std::pair<const char*, const char*> kRoles[] = {{"user_tag", "user"},
                                                          {"assistant_tag", "assistant"},
                                                          {"observation_tag", "tool"},
                                                          {"function_tag", "assistant"},
                                                          {"system_tag", "system"}};
    for (const auto& [tag, meaning] : kRoles) {
      if (info_.tags.at(tag) == role)
        return message(meaning, text_of(turn[content_tag], place_ + ": the content of a message"));
    }
    throw ConfigError(
        fmt::format("{}: a message is from {}, which is not a tag of the data set", place_, quoted(role)));
  }

  json from_sharegpt() const {
    const json& turns = needed("messages");
    if (!turns.is_array()) throw ConfigError(place_ + ": the messages are not a list");
    json messages = json::array();
    for (const json& turn : turns) messages.push_back(converted(turn));
    const bool has_system = !messages.empty() && messages[0]["role"] == "system";
    if (const std::string system = text("system"); !system.empty() && !has_system)
      messages.insert(messages.begin(), message("system", system));
    if (!info_.ranking) return {{"messages", messages}};
    return {{"prompt", messages},
            {"chosen", json::array({converted(needed("chosen"))})},
            {"rejected", json::array({converted(needed("rejected"))})}};
  }

  const DatasetInfo& info_;
  json record_;
  std::string place_;
};

}  // namespace

std::string DatasetInfo::text() const {
  return json({{"sharegpt", is_sharegpt}, {"ranking", ranking}, {"columns", columns}, {"tags", tags}}).dump();
}

std::string DatasetInfo::standard_line(std::string_view line, const std::string& place) const {
  return Record(*this, line, place).standard().dump();
}

DatasetInfo read_dataset_info(const std::string& folder, const std::string& name) {
  const std::string path = folder + "/dataset_info.json";
  const json all = parse_json(
      InputFile(path, "give the folder that has it as dataset_dir").read(kMaxBytes, "a list of data sets"), path);
  if (!all.is_object()) throw ConfigError(path + ": not a JSON object");
  if (!all.contains(name)) {
    std::vector<std::string> names;
    for (const auto& [key, value] : all.items()) names.push_back(key);
    throw ConfigError(fmt::format("{} has no data set {}; it has: {}", path, quoted(name), fmt::join(names, ", ")));
  }
  return parse_entry(all[name], folder, fmt::format("{}, \"{}\"", path, name));
}

}  // namespace concord
