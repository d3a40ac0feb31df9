// Philox 4x32-10, written from the paper (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) and on
// purpose without platform/sdk/philox.hpp: a plugin that uses that header has to agree with this one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace concord::conformance {

using PhiloxWords = std::array<uint32_t, 4>;

inline PhiloxWords philox(PhiloxWords counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(product0)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

// The words of block number |block| of a (key, subsequence), as defined by rng.h.
inline PhiloxWords philox_block(uint64_t key, uint64_t subsequence, uint64_t block) {
  return philox({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), static_cast<uint32_t>(subsequence),
                 static_cast<uint32_t>(subsequence >> 32)},
                static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
}

// The 32 random bits of |position|, for kinds that use one word per position.
inline uint32_t philox_word(uint64_t key, uint64_t subsequence, uint64_t position) {
  return philox_block(key, subsequence, position / 4)[position % 4];
}

// The 64 random bits of |position|, for kinds that use two words per position: the first word is the lower half.
inline uint64_t philox_word_pair(uint64_t key, uint64_t subsequence, uint64_t position) {
  const PhiloxWords words = philox_block(key, subsequence, position / 2);
  const size_t first = (position % 2) * 2;
  return words[first] | (static_cast<uint64_t>(words[first + 1]) << 32);
}

}  // namespace concord::conformance
