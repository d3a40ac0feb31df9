// Conversion between element types of libtorch and of the platform.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include "platform/cpp/types.hpp"

namespace concord {

// Returns nullopt if the platform has no such type (complex numbers, FP8, ...).
std::optional<DType> platform_dtype(c10::ScalarType type);

}  // namespace concord
