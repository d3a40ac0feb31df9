// A hash of text that never changes, on any machine or in any version. Random streams are named by it, so a change
// would change the numbers that a job draws.
#pragma once

#include <cstdint>
#include <string_view>

namespace concord {

// FNV-1a, 64 bits.
constexpr uint64_t stable_hash(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char letter : text) hash = (hash ^ static_cast<uint8_t>(letter)) * 0x100000001b3;
  return hash;
}

// The published test vectors.
static_assert(stable_hash("") == 0xcbf29ce484222325);
static_assert(stable_hash("a") == 0xaf63dc4c8601ec8c);
static_assert(stable_hash("foobar") == 0x85944171f73967e8);

}  // namespace concord
