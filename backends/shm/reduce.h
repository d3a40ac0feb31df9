// The arithmetic of reductions.
//
// Every element is reduced over the sources in order, independently of the others: the result does not depend on how a
// buffer is split. bf16 and f16 are added, multiplied and averaged in float and rounded once. Integers wrap; their
// average is taken of the exact sum. MIN and MAX keep NaN.
#pragma once

#include <cstdint>

#include "platform/abi/types.h"

namespace concord::shm {

// out[i] = reduction over s of sources[s][i], for |elements| elements. There are two sources or more, aligned to the
// element; |out| may be one of them, else it overlaps none.
using Reduction = void (*)(void* out, const void* const* sources, int32_t source_count, int64_t elements);

// Returns null if the combination is meaningless or unknown.
Reduction find_reduction(concord_dtype dtype, concord_reduce_op op);

}  // namespace concord::shm
