// Element types on both sides.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include "platform/cpp/types.hpp"

namespace concord {

// Nothing if the platform has no such type (complex numbers, 8-bit floats, ...).
std::optional<DType> platform_dtype(c10::ScalarType type);

}  // namespace concord
