// What a user who mistyped a name may have meant. Pure.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace concord {

// The one of |known| with the fewest letters changed; empty if none is near.
std::string nearest_name(std::string_view name, std::span<const std::string_view> known);

}  // namespace concord
