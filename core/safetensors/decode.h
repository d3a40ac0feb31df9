// Conversion of elements of safetensors files to numbers. Pure; threads: any.
#pragma once

#include <cstddef>
#include <span>

#include "core/safetensors/dtype.h"

namespace concord::safetensors {

// Large enough for every integer type of the format and the difference of two.
__extension__ typedef __int128 WideInteger;

bool is_integer(DType dtype);  // BOOL too

// Converts |bytes| to numbers, one for each of |out|; a complex element is two. I64 and U64 may be rounded.
void decode(std::span<const std::byte> bytes, DType dtype, std::span<double> out);
// Like decode(), but exact, for integers.
void decode_integers(std::span<const std::byte> bytes, DType dtype, std::span<WideInteger> out);

}  // namespace concord::safetensors
