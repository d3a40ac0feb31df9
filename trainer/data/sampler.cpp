#include "trainer/data/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <random>

#include "core/base/config_error.h"

namespace concord {
namespace {

constexpr int kRounds = 8;
constexpr int kMinHalfBits = 4;  // fewer bits give too few permutations; small sizes then take a few more iterations

// The finalizer of SplitMix64.
uint64_t mixed(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

// torch.randperm(size, generator=torch.Generator().manual_seed(seed)): Fisher and Yates with a Mersenne twister.
std::vector<uint32_t> torch_permutation(uint64_t seed, int64_t size) {
  constexpr int64_t kLargest = std::numeric_limits<uint32_t>::max() / 20;  // from there on torch draws 64 bits
  if (size >= kLargest) {
    throw ConfigError(
        fmt::format("sample_order torch with {} samples; must have less than {}, or be computed", size, kLargest));
  }
  std::vector<uint32_t> places(static_cast<size_t>(size));
  std::iota(places.begin(), places.end(), 0);
  std::mt19937 random(static_cast<uint32_t>(seed));
  for (size_t i = 0; i + 1 < places.size(); ++i) std::swap(places[i], places[i + random() % (places.size() - i)]);
  return places;
}

}  // namespace

SampleOrder::SampleOrder(int64_t seed, int64_t epoch, int64_t size, bool shuffle, SampleShuffle kind)
    : size_(size), shuffle_(shuffle) {
  if (shuffle && kind == SampleShuffle::torch) {
    permutation_ = torch_permutation(static_cast<uint64_t>(seed + epoch), size);
    return;
  }
  key_ = mixed(mixed(static_cast<uint64_t>(seed) + 0x9e3779b97f4a7c15) + static_cast<uint64_t>(epoch));
  const int bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(size, 1) - 1)));
  half_bits_ = std::max(kMinHalfBits, (bits + 1) / 2);
}

uint64_t SampleOrder::permute(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_, right = value & mask;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint64_t next = left ^ (mixed(key_ + (round << 56) + right) & mask);
    left = right;
    right = next;
  }
  return (left << half_bits_) | right;
}

int64_t SampleOrder::at(int64_t place) const {
  if (!shuffle_) return place;
  if (!permutation_.empty()) return permutation_[static_cast<size_t>(place)];
  uint64_t value = permute(static_cast<uint64_t>(place));
  while (value >= static_cast<uint64_t>(size_)) value = permute(value);
  return static_cast<int64_t>(value);
}

}  // namespace concord
