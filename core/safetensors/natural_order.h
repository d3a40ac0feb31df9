// Natural order of tensor names: "layers.2" before "layers.10".
#pragma once

#include <string_view>

namespace concord::safetensors {

// A strict total order: numbers are compared by value, everything else by bytes.
bool natural_less(std::string_view a, std::string_view b);

}  // namespace concord::safetensors
