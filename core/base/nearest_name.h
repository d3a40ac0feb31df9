// Suggestions for mistyped names. Pure.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace concord {

// Returns the name in |known| with the smallest edit distance to |name|; empty if none is close.
std::string nearest_name(std::string_view name, std::span<const std::string_view> known);

}  // namespace concord
