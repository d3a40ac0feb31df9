// JSON that others wrote. Threads: pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/config_error.h"
#include "core/quoted.h"

namespace concord {

// Throws ConfigError if |text| has a zero byte, which the JSON library takes for the end: it would not look at what
// follows. |place| ("config.json") begins the sentence.
inline void refuse_zero_byte(std::string_view text, const std::string& place) {
  const size_t zero = text.find('\0');
  if (zero != std::string_view::npos)
    throw ConfigError(place + ": is not JSON: byte " + std::to_string(zero) + " is 0");
}

// The value that |text| is, all of it. |each| as the library calls it, while it reads. Throws ConfigError if it is
// none.
template <class Json = nlohmann::json>
Json parse_json(std::string_view text, const std::string& place,
                const typename Json::parser_callback_t& each = nullptr) {
  constexpr size_t kLongestReason = 300;
  refuse_zero_byte(text, place);
  try {
    return Json::parse(text, each);
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(place + ": is not JSON: " + one_line(error.what(), kLongestReason));
  }
}

}  // namespace concord
