// Philox 4x32-10: the random words that platform/sdk/philox.hpp turns into values. Header-only, also for device code.
#pragma once

#include <cstdint>
#include <utility>

#include "platform/sdk/dtypes.hpp"

namespace concord::sdk {

struct PhiloxBlock {
  uint32_t word[4];
};

inline constexpr uint32_t kPhiloxM0 = 0xd2511f53u;
inline constexpr uint32_t kPhiloxM1 = 0xcd9e8d57u;
inline constexpr uint32_t kPhiloxW0 = 0x9e3779b9u;
inline constexpr uint32_t kPhiloxW1 = 0xbb67ae85u;
inline constexpr int kPhiloxRounds = 10;

CONCORD_HOST_DEVICE inline void philox_round(uint32_t& c0, uint32_t& c1, uint32_t& c2, uint32_t& c3, uint32_t k0,
                                             uint32_t k1) {
  const uint64_t p0 = static_cast<uint64_t>(kPhiloxM0) * c0;
  const uint64_t p1 = static_cast<uint64_t>(kPhiloxM1) * c2;
  c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
  c1 = static_cast<uint32_t>(p1);
  c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
  c3 = static_cast<uint32_t>(p0);
}

// All rounds, written out (a loop inside would keep a loop around it from being vectorised).
template <int... kRound>
CONCORD_HOST_DEVICE inline PhiloxBlock philox_rounds(PhiloxBlock c, uint32_t k0, uint32_t k1,
                                                     std::integer_sequence<int, kRound...>) {
  (philox_round(c.word[0], c.word[1], c.word[2], c.word[3], k0 + kRound * kPhiloxW0, k1 + kRound * kPhiloxW1), ...);
  return c;
}

CONCORD_HOST_DEVICE inline PhiloxBlock philox(PhiloxBlock counter, uint32_t k0, uint32_t k1) {
  return philox_rounds(counter, k0, k1, std::make_integer_sequence<int, kPhiloxRounds>());
}

// Block |block| of the stream (key, subsequence).
CONCORD_HOST_DEVICE inline PhiloxBlock philox_block(uint64_t key, uint64_t subsequence, uint64_t block) {
  const PhiloxBlock counter = {{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                                static_cast<uint32_t>(subsequence), static_cast<uint32_t>(subsequence >> 32)}};
  return philox(counter, static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
}

}  // namespace concord::sdk
