// JSON that others wrote. Threads: pure.
//
// The library's parser is a template that takes seconds to compile: it is instantiated in parse_json.cpp alone.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace concord {

// Throws ConfigError if |text| has a zero byte, which the JSON library takes for the end: it would not look at what
// follows. |place| ("config.json") begins the sentence.
void refuse_zero_byte(std::string_view text, const std::string& place);

// Returns the message of |error| without the library's prefix: "the key 'name' is missing", "type must be string, but
// is number". One short line.
std::string json_reason(const nlohmann::json::exception& error);

// The value that |text| is, all of it, as nlohmann::json or ordered_json. |each| as the library calls it, while it
// reads. Throws ConfigError if it is none.
template <class Json = nlohmann::json>
Json parse_json(std::string_view text, const std::string& place,
                const typename Json::parser_callback_t& each = nullptr);

// The same where the caller has its own words for text that is not JSON: then is_discarded().
template <class Json = nlohmann::json>
Json json_or_discarded(std::string_view text);

extern template nlohmann::json parse_json(std::string_view, const std::string&,
                                          const nlohmann::json::parser_callback_t&);
extern template nlohmann::ordered_json parse_json(std::string_view, const std::string&,
                                                  const nlohmann::ordered_json::parser_callback_t&);
extern template nlohmann::json json_or_discarded(std::string_view);
extern template nlohmann::ordered_json json_or_discarded(std::string_view);

}  // namespace concord
