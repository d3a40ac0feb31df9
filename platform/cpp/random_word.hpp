// One random number on the host, of the same generator that fills tensors on every vendor (platform/cpp/rng.hpp), for
// decisions that a process makes by itself. Threads: pure.
#pragma once

#include <cstdint>

#include "platform/sdk/philox.hpp"

namespace concord {

// The 64 bits at |position| of the stream (key, subsequence): the first two words of that block of Philox.
inline uint64_t random_word(uint64_t key, uint64_t subsequence, uint64_t position) {
  const sdk::PhiloxBlock block = sdk::philox_block(key, subsequence, position);
  return static_cast<uint64_t>(block.word[1]) << 32 | block.word[0];
}

}  // namespace concord
