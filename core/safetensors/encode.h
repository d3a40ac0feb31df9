// Numbers as elements of safetensors files: the other direction of decode.h. Pure; threads: any.
#pragma once

#include <cstddef>
#include <span>

#include "core/safetensors/dtype.h"

namespace concord::safetensors {

// F64, F32, BF16 and F16: the types that weights are converted between.
bool is_weight_type(DType dtype);

// |values| as elements of a weight type, rounded to the nearest and from the middle to the even one, as torch does: to
// F32 first, from there to 16 bits. What is too large becomes infinite, what is small subnormal or 0; NaN stays NaN.
// Throws std::logic_error for other types.
void encode(std::span<const double> values, DType dtype, std::span<std::byte> out);

}  // namespace concord::safetensors
