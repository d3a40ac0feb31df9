#include "core/models/config_reader.h"

#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/config_error.h"
#include "core/base/quoted.h"

namespace concord {
namespace {

using nlohmann::json;

constexpr size_t kMaxValue = 80;  // in an error
constexpr size_t kMaxReason = 2000;

std::string short_text(const json& value) {
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  if (text.size() > kMaxValue) text = text.substr(0, kMaxValue) + "...";
  return text;
}

}  // namespace

ConfigReader::ConfigReader(const json& object, std::string file, std::string path)
    : object_(object), file_(std::move(file)), path_(std::move(path)) {
  if (!object_.is_object()) {
    throw ConfigError(fmt::format("{}: {} is {}; must be a JSON object {{...}}", file_,
                                  path_.empty() ? "the document" : path_.substr(0, path_.size() - 1),
                                  short_text(object_)));
  }
}

bool ConfigReader::has(const std::string& key) const {
  if (asked_ != nullptr) asked_->insert(key);
  const auto found = object_.find(key);
  return found != object_.end() && !found->is_null();
}

bool ConfigReader::names(const std::string& key) const {
  if (asked_ != nullptr) asked_->insert(key);
  return object_.contains(key);
}

// |why| may quote any text of the file, so it is escaped here, where every message passes.
void ConfigReader::refuse(const std::string& why) const {
  throw ConfigError(fmt::format("{}: {}", file_, one_line(why, kMaxReason)));
}

void ConfigReader::refuse(const std::string& key, const std::string& what) const {
  const auto found = object_.find(key);
  const std::string given = found == object_.end() ? " is not given" : fmt::format(" is {}", short_text(*found));
  refuse(fmt::format("{}{}{}; it {}", path_, key, given, what));
}

const json& ConfigReader::value(const std::string& key, const std::string& wanted) const {
  if (!has(key)) refuse(key, wanted);
  return object_.at(key);
}

int64_t ConfigReader::integer(const std::string& key, IntegerRange range, std::optional<int64_t> fallback) const {
  if (!has(key) && fallback) return *fallback;
  const std::string wanted = fmt::format("must be an integer from {} to {}", range.least, range.most);
  const json& given = value(key, wanted);
  if (!given.is_number_integer()) refuse(key, wanted);
  if (given.is_number_unsigned() && given.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) refuse(key, wanted);
  const auto number = given.get<int64_t>();
  if (number < range.least || number > range.most) refuse(key, wanted);
  return number;
}

double ConfigReader::number(const std::string& key, const std::string& wanted) const {
  const json& given = value(key, wanted);
  if (!given.is_number()) refuse(key, wanted);
  const auto number = given.get<double>();
  if (!std::isfinite(number)) refuse(key, wanted);
  return number;
}

double ConfigReader::positive(const std::string& key, std::optional<double> fallback) const {
  if (!has(key) && fallback) return *fallback;
  const std::string wanted = "must be a number > 0";
  const double given = number(key, wanted);
  if (!(given > 0)) refuse(key, wanted);
  return given;
}

double ConfigReader::not_negative(const std::string& key, std::optional<double> fallback) const {
  if (!has(key) && fallback) return *fallback;
  const std::string wanted = "must be a number >= 0";
  const double given = number(key, wanted);
  if (!(given >= 0)) refuse(key, wanted);
  return given;
}

bool ConfigReader::flag(const std::string& key, bool fallback) const {
  if (!has(key)) return fallback;
  const json& given = object_.at(key);
  if (!given.is_boolean()) refuse(key, "must be true or false");
  return given.get<bool>();
}

std::string ConfigReader::text(const std::string& key, std::optional<std::string> fallback) const {
  if (!has(key) && fallback) return *fallback;
  const json& given = value(key, "must be a string");
  if (!given.is_string()) refuse(key, "must be a string");
  return given.get<std::string>();
}

std::vector<std::string> ConfigReader::texts(const std::string& key) const {
  if (!has(key)) return {};
  const json& given = object_.at(key);
  const std::string wanted = "must be a list of strings";
  if (!given.is_array()) refuse(key, wanted);
  std::vector<std::string> result;
  for (const json& item : given) {
    if (!item.is_string()) refuse(key, wanted);
    result.push_back(item.get<std::string>());
  }
  return result;
}

std::vector<int64_t> ConfigReader::integers(const std::string& key, IntegerRange range) const {
  if (!has(key)) return {};
  const json& given = object_.at(key);
  const std::string wanted = fmt::format("must be a list of integers from {} to {}", range.least, range.most);
  if (!given.is_array()) refuse(key, wanted);
  std::vector<int64_t> result;
  for (const json& item : given) {
    const bool fits = item.is_number_integer() && !(item.is_number_unsigned() && item.get<uint64_t>() > INT64_MAX);
    if (!fits) refuse(key, wanted);
    result.push_back(item.get<int64_t>());
    if (result.back() < range.least || result.back() > range.most) refuse(key, wanted);
  }
  return result;
}

size_t ConfigReader::keys() const { return object_.size(); }

std::vector<std::string> ConfigReader::key_names() const {
  std::vector<std::string> names;
  for (const auto& [key, value] : object_.items()) names.push_back(key);
  return names;
}

ConfigReader ConfigReader::object(const std::string& key) const {
  if (!has(key)) refuse(key, "must be a JSON object {...}");
  return {object_.at(key), file_, fmt::format("{}{}.", path_, key)};
}

}  // namespace concord
