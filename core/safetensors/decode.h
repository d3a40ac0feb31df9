// Elements of safetensors files as numbers. Pure; threads: any.
#pragma once

#include <cstddef>
#include <span>

#include "core/safetensors/dtype.h"

namespace concord::safetensors {

// Holds every integer of a file and the distance of two.
__extension__ typedef __int128 WideInteger;

bool is_integer(DType dtype);  // BOOL too

// |bytes| as numbers, one for each of |out|; a complex element is two. I64 and U64 may be rounded.
void decode(std::span<const std::byte> bytes, DType dtype, std::span<double> out);
// The same for integers, exact.
void decode_integers(std::span<const std::byte> bytes, DType dtype, std::span<WideInteger> out);

}  // namespace concord::safetensors
