// The order in which people read names of tensors: "layers.2" before "layers.10".
#pragma once

#include <string_view>

namespace concord::safetensors {

// A strict order of all names: numbers within them by their value, everything else by its bytes.
bool natural_less(std::string_view a, std::string_view b);

}  // namespace concord::safetensors
