// How many rows a vocabulary has once it is split over a tensor-parallel group. Needs no libtorch.
#pragma once

#include <cstdint>

namespace concord {

// The smallest multiple of |multiple| * |degree| that holds |vocabulary|: Megatron's, whose multiple is 128. Throws
// ConfigError if one of them is not positive.
int64_t padded_vocabulary(int64_t vocabulary, int64_t degree, int64_t multiple = 128);

}  // namespace concord
