// Parsing of JSON from other programs. Threads: pure.
//
// The library's parser is a template that takes seconds to compile, so it is instantiated only in parse_json.cpp.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace concord {

// Throws ConfigError if |text| contains a zero byte, at which the JSON library would stop parsing. |place|
// ("config.json") begins the message.
void refuse_zero_byte(std::string_view text, const std::string& place);

// Returns the message of |error| without the library's prefix: "the key 'name' is missing", "type must be string, but
// is number". One short line.
std::string json_reason(const nlohmann::json::exception& error);

// Parses all of |text| as nlohmann::json or ordered_json. |each| is passed to the library as its parser callback.
// Throws ConfigError if |text| is not JSON.
template <class Json = nlohmann::json>
Json parse_json(std::string_view text, const std::string& place,
                const typename Json::parser_callback_t& each = nullptr);

// Like parse_json(), but returns a discarded value (is_discarded()) if |text| is not JSON, for callers with their own
// error messages.
template <class Json = nlohmann::json>
Json json_or_discarded(std::string_view text);

extern template nlohmann::json parse_json(std::string_view, const std::string&,
                                          const nlohmann::json::parser_callback_t&);
extern template nlohmann::ordered_json parse_json(std::string_view, const std::string&,
                                                  const nlohmann::ordered_json::parser_callback_t&);
extern template nlohmann::json json_or_discarded(std::string_view);
extern template nlohmann::ordered_json json_or_discarded(std::string_view);

}  // namespace concord
