#include "core/parse_json.h"

#include "core/config_error.h"
#include "core/quoted.h"

namespace concord {

void refuse_zero_byte(std::string_view text, const std::string& place) {
  const size_t zero = text.find('\0');
  if (zero != std::string_view::npos)
    throw ConfigError(place + ": is not JSON: byte " + std::to_string(zero) + " is 0");
}

template <class Json>
Json parse_json(std::string_view text, const std::string& place, const typename Json::parser_callback_t& each) {
  constexpr size_t kLongestReason = 300;
  refuse_zero_byte(text, place);
  try {
    return Json::parse(text, each);
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(place + ": is not JSON: " + one_line(error.what(), kLongestReason));
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
