// What somebody who slipped may have meant. Pure.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace concord {

// The one of |known| with the fewest letters changed; empty where none is near.
std::string nearest_name(std::string_view name, std::span<const std::string_view> known);

}  // namespace concord
