// Compiled so that loops over floats vectorise; the values stay what they are (see CMakeLists.txt).
#include "backends/cpu/random_fill.h"

#include <sched.h>

#include <algorithm>
#include <system_error>
#include <thread>
#include <vector>

#include "platform/sdk/philox.hpp"

namespace concord::cpu {
namespace {

constexpr int kLanes = 16;                       // blocks computed side by side
constexpr int64_t kElementsPerThread = 1 << 17;  // some 0.2 ms of work: well above what starting a thread costs

// The words of blocks first .. first + kLanes - 1, in their order.
void lanes_of_words(const concord_rng_request& request, uint64_t first, uint64_t block_mask, uint32_t* words) {
  for (int j = 0; j < kLanes; ++j) {
    const uint64_t block = (first + static_cast<uint64_t>(j)) & block_mask;
    const sdk::PhiloxBlock lane = sdk::philox_block(request.key, request.subsequence, block);
    for (int w = 0; w < 4; ++w) words[4 * j + w] = lane.word[w];
  }
}

// The elements of one group of blocks. A conversion gets a loop of its own: the compiler vectorises what comes before
// it.
template <class Generator>
void fill_group(const Generator& generator, const uint32_t* words, typename Generator::Out* out) {
  constexpr int kCount = kLanes * 4 / Generator::kWords;
  if constexpr (requires { Generator::convert(0.0f); }) {
    float values[kCount];
    for (int j = 0; j < kCount; ++j) values[j] = generator.value(words + j * Generator::kWords);
    for (int j = 0; j < kCount; ++j) out[j] = Generator::convert(values[j]);
  } else {
    for (int j = 0; j < kCount; ++j) out[j] = generator.at(words + j * Generator::kWords);
  }
}

// Elements begin .. end - 1 of a request without runs. Its head and tail, which do not fill whole groups of blocks, go one by one.
template <class Generator>
void fill_range(const concord_rng_request& request, const Generator& generator, int64_t begin, int64_t end) {
  using Out = typename Generator::Out;
  constexpr int64_t kPerBlock = 4 / Generator::kWords;
  constexpr int64_t kPerGroup = kLanes * kPerBlock;
  constexpr uint64_t kBlockMask = UINT64_MAX / kPerBlock;  // positions wrap at 2^64
  Out* out = static_cast<Out*>(request.destination);
  const auto one = [&](int64_t i) {
    const uint64_t position = request.offset + static_cast<uint64_t>(i);
    out[i] = sdk::value_at(generator, request.key, request.subsequence, position);
  };
  int64_t i = begin;
  while (i < end && (request.offset + static_cast<uint64_t>(i)) % kPerBlock != 0) one(i++);
  alignas(64) uint32_t words[4 * kLanes];
  for (; end - i >= kPerGroup; i += kPerGroup) {
    const uint64_t position = request.offset + static_cast<uint64_t>(i);
    lanes_of_words(request, sdk::block_of<Generator>(position), kBlockMask, words);
    fill_group(generator, words, out + i);
  }
  while (i < end) one(i++);
}

// The same for any request: run by run.
template <class Generator>
void fill_part(const concord_rng_request& request, const Generator& generator, int64_t begin, int64_t end) {
  if (request.run_length == 0) return fill_range(request, generator, begin, end);
  concord_rng_request run = request;
  for (int64_t i = begin; i < end;) {
    const int64_t inside = i % request.run_length;
    const int64_t length = std::min(request.run_length - inside, end - i);
    run.destination = static_cast<typename Generator::Out*>(request.destination) + i;
    run.offset = sdk::position_of(request, i);
    fill_range(run, generator, 0, length);
    i += length;
  }
}

}  // namespace

void fill_random(const concord_rng_request& request, int threads) {
  sdk::visit_rng(request, [&](const auto& generator) {
    const int64_t share = (request.count + threads - 1) / threads;
    const auto part = [&](int64_t t) {
      fill_part(request, generator, std::min(t * share, request.count), std::min((t + 1) * share, request.count));
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

int fill_threads(int64_t count) {
  cpu_set_t cores;
  if (count < 2 * kElementsPerThread || sched_getaffinity(0, sizeof cores, &cores) != 0) return 1;
  return static_cast<int>(std::clamp<int64_t>(count / kElementsPerThread, 1, CPU_COUNT(&cores)));
}

}  // namespace concord::cpu
