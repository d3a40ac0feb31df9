#include "trainer/data/media/media_parts.h"

#include <fmt/core.h>

#include <array>
#include <string_view>

#include "core/base/config_error.h"
#include "core/base/quoted.h"

namespace concord {
namespace {

using nlohmann::json;

bool has(const json& object, const char* key) { return object.contains(key) && !object[key].is_null(); }

std::string text_at(const json& object, const char* key) {
  return object.is_object() && object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "";
}

// A column of the record, with a value for each placeholder.
struct Column {
  const char* type;
  const char* name;
  std::string_view placeholder;
  json values = json::array();
  size_t placeholders = 0;

  bool exists() const { return !values.empty(); }
};

// Takes media of the columns and of parts, in the order of their places.
class MediaTaker {
 public:
  MediaTaker(const json& record, const std::string& place) : place_(place) {
    if (has(record, "audios") && !record["audios"].empty()) refuse_audio("\"audios\"");
    for (Column& column : columns_) {
      if (!has(record, column.name)) continue;
      const json& values = record[column.name];
      column.values = values.is_array() ? values : json::array({values});
    }
  }

  void take_from(json* message) {
    if (!message->is_object() || !message->contains("content")) return;
    json& content = (*message)["content"];
    if (content.is_string()) {
      const std::string text = content.get<std::string>();
      if (next_placeholder(text, 0).second != nullptr) content = parts_of(text);
    } else if (content.is_array()) {
      json parts = json::array();
      for (const json& part : content) take_part(part, &parts);
      content = std::move(parts);
    }
  }

  std::vector<RecordMedium> finish(bool has_messages) {
    for (const Column& column : columns_) {
      if (column.placeholders == column.values.size()) continue;
      if (!has_messages) {
        throw ConfigError(fmt::format("{}: has {}, which are part of a message; give the texts as lists of messages",
                                      place_, column.name));
      }
      throw ConfigError(
          fmt::format("{}: has {} {}, but its messages have {} placeholders {}; the numbers must be equal", place_,
                      column.values.size(), column.name, column.placeholders, column.placeholder));
    }
    return std::move(media_);
  }

 private:
  [[noreturn]] void refuse_audio(const std::string& what) const {
    throw ConfigError(
        fmt::format("{}: has {}, but no model with audio can be trained yet; remove such records", place_, what));
  }

  void take_of(Column* column) {
    if (column->placeholders < column->values.size()) add(*column, column->values[column->placeholders]);
    ++column->placeholders;
  }
  void add(const Column& column, const json& value) {
    media_.push_back({column.type == std::string_view("video"), value.dump()});
  }

  // Returns the first placeholder of a column that exists, at or after |from|, and its column; null if there is none.
  std::pair<size_t, Column*> next_placeholder(const std::string& text, size_t from) {
    std::pair<size_t, Column*> first{text.size(), nullptr};
    for (Column& column : columns_) {
      const size_t at = column.exists() ? text.find(column.placeholder, from) : std::string::npos;
      if (at < first.first) first = {at, &column};
    }
    return first;
  }

  json parts_of(const std::string& text) {
    json parts = json::array();
    for (size_t begin = 0; begin < text.size();) {
      const auto [at, column] = next_placeholder(text, begin);
      if (begin < at) parts.push_back({{"type", "text"}, {"text", text.substr(begin, at - begin)}});
      if (column == nullptr) break;
      parts.push_back({{"type", column->type}});
      take_of(column);
      begin = at + column->placeholder.size();
    }
    return parts;
  }

  void take_part(const json& part, json* parts) {
    const std::string type = text_at(part, "type");
    const std::string text = type == "text" ? text_at(part, "text") : "";
    if (next_placeholder(text, 0).second != nullptr) {
      for (json& each : parts_of(text)) parts->push_back(std::move(each));
      return;
    }
    if (type.find("audio") != std::string::npos) refuse_audio("a part of type " + quoted(type));
    for (Column& column : columns_) {
      const std::string name = column.type, url = name + "_url";
      if (type != name && type != url) continue;
      parts->push_back({{"type", name}});
      for (const std::string& key : {url, name, std::string("url"), std::string("path")}) {
        if (has(part, key.c_str())) return add(column, part[key]);
      }
      return take_of(&column);
    }
    parts->push_back(part);
  }

  const std::string& place_;
  std::array<Column, 2> columns_ = {Column{"image", "images", "<image>"}, Column{"video", "videos", "<video>"}};
  std::vector<RecordMedium> media_;
};

}  // namespace

std::vector<RecordMedium> take_media(const json& record, const std::string& place, json* messages) {
  MediaTaker taker(record, place);
  for (json& message : *messages) taker.take_from(&message);
  return taker.finish(!messages->empty());
}

}  // namespace concord
