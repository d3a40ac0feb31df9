// numpy's RandomState(seed).shuffle, bit for bit: Megatron's data orders use it.
#pragma once

#include <bit>
#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace concord {

// Fisher-Yates from the end; an index is drawn by masking to the next power of two and redrawing while it is too large.
// |values| has at most 2^32 elements (above that numpy draws 64 bits).
template <typename Value>
void numpy_shuffle(std::span<Value> values, std::mt19937& random) {
  for (size_t i = values.size(); i-- > 1;) {
    const uint32_t mask = static_cast<uint32_t>((uint64_t{1} << std::bit_width(i)) - 1);
    uint32_t j = static_cast<uint32_t>(random()) & mask;
    while (j > i) j = static_cast<uint32_t>(random()) & mask;
    std::swap(values[i], values[j]);
  }
}

}  // namespace concord
