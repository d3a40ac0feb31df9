#include "core/base/parse_json.h"

#include <algorithm>

#include "core/base/config_error.h"
#include "core/base/quoted.h"

namespace concord {
namespace {

constexpr size_t kMaxReason = 300;
// Error ids of the library.
constexpr int kMissingKey = 403, kNumberOverflow = 406;

// Returns the last key before the number that ends the parsing of |text|.
template <class Json>
std::string last_key(std::string_view text) {
  std::string key;
  const auto remember = [&](int, typename Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::key) key = value.template get<std::string>();
    return true;
  };
  const Json ignored = Json::parse(text, remember, /*allow_exceptions=*/false);
  return key;
}

// Returns the part of |text| in single quotes, in which the library quotes numbers and keys.
std::string_view quoted_part(std::string_view text) {
  const size_t begin = text.find('\''), end = text.rfind('\'');
  return begin < end ? text.substr(begin + 1, end - begin - 1) : text;
}

}  // namespace

void refuse_zero_byte(std::string_view text, const std::string& place) {
  const size_t zero = text.find('\0');
  if (zero != std::string_view::npos)
    throw ConfigError(place + ": is not JSON: byte " + std::to_string(zero) + " is 0");
}

std::string json_reason(const nlohmann::json::exception& error) {
  std::string_view text = error.what();
  if (text.starts_with('[')) text.remove_prefix(std::min(text.find("] ") + 2, text.size()));
  if (error.id == kMissingKey) return "the key " + quoted(quoted_part(text)) + " is missing";
  return one_line(text, kMaxReason);
}

template <class Json>
Json parse_json(std::string_view text, const std::string& place, const typename Json::parser_callback_t& each) {
  refuse_zero_byte(text, place);
  try {
    return Json::parse(text, each);
  } catch (const nlohmann::json::exception& error) {
    if (error.id != kNumberOverflow) throw ConfigError(place + ": is not JSON: " + json_reason(error));
    const std::string key = last_key<Json>(text);
    throw ConfigError(place + ": " + (key.empty() ? "a number" : quoted(key)) + " is " +
                      one_line(quoted_part(error.what())) + "; a number must be at most 1.79e308 in magnitude");
  }
}

template <class Json>
Json json_or_discarded(std::string_view text) {
  return Json::parse(text, nullptr, false);
}

template nlohmann::json parse_json(std::string_view, const std::string&, const nlohmann::json::parser_callback_t&);
template nlohmann::ordered_json parse_json(std::string_view, const std::string&,
                                           const nlohmann::ordered_json::parser_callback_t&);
template nlohmann::json json_or_discarded(std::string_view);
template nlohmann::ordered_json json_or_discarded(std::string_view);

}  // namespace concord
