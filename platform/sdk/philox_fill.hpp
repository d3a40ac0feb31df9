// Fills host memory with the random numbers that philox.hpp defines: many blocks at a time, on several threads. For
// backends that compute them on the host. Header-only; the one file of a backend that includes it is compiled with
// -ffp-contract=off (philox.hpp says why) and, so that loops over floats vectorise, -fno-math-errno -fno-trapping-math.
#pragma once

#include <sched.h>

#include <algorithm>
#include <system_error>
#include <thread>
#include <vector>

#include "platform/sdk/philox.hpp"

namespace concord::sdk {

inline constexpr int kFillLanes = 16;                       // blocks computed side by side
inline constexpr int64_t kFillElementsPerThread = 1 << 17;  // some 0.2 ms of work: well above what a thread costs

// The words of blocks first .. first + kFillLanes - 1, in order.
inline void lanes_of_words(const concord_rng_request& request, uint64_t first, uint64_t block_mask, uint32_t* words) {
  for (int j = 0; j < kFillLanes; ++j) {
    const uint64_t block = (first + static_cast<uint64_t>(j)) & block_mask;
    const PhiloxBlock lane = philox_block(request.key, request.subsequence, block);
    for (int w = 0; w < 4; ++w) words[4 * j + w] = lane.word[w];
  }
}

// The elements of one group of blocks. A conversion has a separate loop, so that the compiler vectorises the first
// one.
template <class Generator>
void fill_group(const Generator& generator, const uint32_t* words, typename Generator::Out* out) {
  constexpr int kCount = kFillLanes * 4 / Generator::kWords;
  if constexpr (requires { Generator::convert(0.0f); }) {
    float values[kCount];
    for (int j = 0; j < kCount; ++j) values[j] = generator.value(words + j * Generator::kWords);
    for (int j = 0; j < kCount; ++j) out[j] = Generator::convert(values[j]);
  } else {
    for (int j = 0; j < kCount; ++j) out[j] = generator.at(words + j * Generator::kWords);
  }
}

// The values at |count| positions, starting at |offset|, of the number stream of |request|. Head and tail, which do not
// fill whole groups of blocks, go one by one.
template <class Generator>
void fill_positions(const concord_rng_request& request, const Generator& generator, uint64_t offset, int64_t count,
                    typename Generator::Out* out) {
  constexpr int64_t kPerBlock = 4 / Generator::kWords;
  constexpr int64_t kPerGroup = kFillLanes * kPerBlock;
  constexpr uint64_t kBlockMask = UINT64_MAX / kPerBlock;  // positions wrap at 2^64
  const auto one = [&](int64_t i) {
    out[i] = value_at(generator, request.key, request.subsequence, offset + static_cast<uint64_t>(i));
  };
  int64_t i = 0;
  while (i < count && (offset + static_cast<uint64_t>(i)) % kPerBlock != 0) one(i++);
  alignas(64) uint32_t words[4 * kFillLanes];
  for (; count - i >= kPerGroup; i += kPerGroup) {
    lanes_of_words(request, block_of<Generator>(offset + static_cast<uint64_t>(i)), kBlockMask, words);
    fill_group(generator, words, out + i);
  }
  while (i < count) one(i++);
}

// Elements begin .. end - 1 of |request| to out[0], out[1], ...: run by run if it has runs.
template <class Generator>
void fill_elements(const concord_rng_request& request, const Generator& generator, int64_t begin, int64_t end,
                   typename Generator::Out* out) {
  for (int64_t i = begin; i < end;) {
    const int64_t left_of_run = request.run_length > 0 ? request.run_length - i % request.run_length : end - i;
    const int64_t length = std::min(left_of_run, end - i);
    fill_positions(request, generator, position_of(request, i), length, out + (i - begin));
    i += length;
  }
}

// Elements begin .. end - 1 of |request|, which comes from read_rng_request, to |out| in host memory; its destination
// is not looked at. Waits until it is done. Up to |threads| threads take part (at least 1: the caller's); the values do
// not depend on how many. Threads: any thread, any time.
inline void fill_random(const concord_rng_request& request, int64_t begin, int64_t end, void* out, int threads) {
  visit_rng(request, [&](const auto& generator) {
    using Out = typename std::remove_cvref_t<decltype(generator)>::Out;
    const int64_t share = (end - begin + threads - 1) / threads;
    const auto part = [&](int64_t t) {
      const int64_t from = std::min(begin + t * share, end);
      fill_elements(request, generator, from, std::min(from + share, end), static_cast<Out*>(out) + (from - begin));
    };
    std::vector<std::jthread> helpers;  // joined at the end of this scope
    int64_t next = 1;
    try {
      for (; next < threads; ++next) helpers.emplace_back(part, next);
    } catch (const std::system_error&) {
      // The system gives no more threads: the caller's does the rest.
    }
    part(0);
    for (; next < threads; ++next) part(next);
  });
}

// How many threads a fill of |count| elements is worth, given the cores that the calling thread may run on.
inline int fill_threads(int64_t count) {
  cpu_set_t cores;
  if (count < 2 * kFillElementsPerThread || sched_getaffinity(0, sizeof cores, &cores) != 0) return 1;
  return static_cast<int>(std::clamp<int64_t>(count / kFillElementsPerThread, 1, CPU_COUNT(&cores)));
}

}  // namespace concord::sdk
