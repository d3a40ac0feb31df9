// Conversion of numbers to elements of safetensors files: the inverse of decode.h. Pure; threads: any.
#pragma once

#include <cstddef>
#include <span>

#include "core/safetensors/dtype.h"

namespace concord::safetensors {

// Returns true for F64, F32, BF16 and F16: the types that weights are converted between.
bool is_weight_type(DType dtype);

// Converts |values| to a weight type, rounding to nearest even like torch: to F32 first, then to BF16 or F16. Values
// that are too large become infinite, small ones subnormal or 0; NaN is preserved. Throws std::logic_error for other
// types.
void encode(std::span<const double> values, DType dtype, std::span<std::byte> out);

}  // namespace concord::safetensors
