// The padded size of a vocabulary that is sharded over a tensor-parallel group. Independent of libtorch.
#pragma once

#include <cstdint>

namespace concord {

// Returns the smallest multiple of |multiple| * |degree| that is at least |vocabulary|, like Megatron, whose multiple
// is 128. Throws ConfigError unless all are positive.
int64_t padded_vocabulary(int64_t vocabulary, int64_t degree, int64_t multiple = 128);

}  // namespace concord
