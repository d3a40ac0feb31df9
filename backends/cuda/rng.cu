#include "backends/cuda/kernels.h"
#include "backends/cuda/launch.cuh"
#include "platform/sdk/philox.hpp"

namespace concord::cuda {
namespace {

// All positions of a block, stored at once.
template <class Generator>
struct alignas(sizeof(typename Generator::Out) * 4 / Generator::kWords) Pack {
  typename Generator::Out value[4 / Generator::kWords];
};

// An item is a block of Philox, which holds 4 words: each thread computes one and writes the positions in it that the
// request covers. Positions wrap at 2^64, so that distances from the first block are taken, not block numbers.
template <class Generator>
__global__ void fill(Generator generator, typename Generator::Out* destination, uint64_t count, uint64_t key,
                     uint64_t subsequence, uint64_t offset, uint64_t blocks) {
  constexpr uint64_t kPositions = 4 / Generator::kWords;
  constexpr uint64_t kLastBlock = ~uint64_t{0} / kPositions;
  const uint64_t first = sdk::block_of<Generator>(offset);
  const uint64_t skipped = offset % kPositions;  // positions of the first block that come before the request
  const bool packs = skipped == 0 && reinterpret_cast<uintptr_t>(destination) % sizeof(Pack<Generator>) == 0;
  for (uint64_t b = global_index(); b < blocks; b += global_size()) {
    const sdk::PhiloxBlock block = sdk::philox_block(key, subsequence, (first + b) & kLastBlock);
    Pack<Generator> pack;
    for (uint64_t p = 0; p < kPositions; ++p) pack.value[p] = generator.at(block.word + p * Generator::kWords);
    if (packs && (b + 1) * kPositions <= count) {
      reinterpret_cast<Pack<Generator>*>(destination)[b] = pack;
      continue;
    }
    for (uint64_t p = 0; p < kPositions; ++p) {
      const uint64_t at = b * kPositions + p;
      if (at >= skipped && at - skipped < count) destination[at - skipped] = pack.value[p];
    }
  }
}

// With runs an item is an element: blocks of Philox and runs meet at any place. Weights are filled so, once.
template <class Generator>
__global__ void fill_runs(Generator generator, concord_rng_request request) {
  auto* destination = static_cast<typename Generator::Out*>(request.destination);
  for (uint64_t i = global_index(); i < static_cast<uint64_t>(request.count); i += global_size()) {
    const uint64_t position = sdk::position_of(request, static_cast<int64_t>(i));
    destination[i] = sdk::value_at(generator, request.key, request.subsequence, position);
  }
}

}  // namespace

cudaError_t launch_rng(const concord_rng_request& request, cudaStream_t stream) {
  cudaError_t result = cudaErrorUnknown;
  sdk::visit_rng(request, [&]<class Generator>(const Generator& generator) {
    constexpr uint64_t kPositions = 4 / Generator::kWords;
    const auto count = static_cast<uint64_t>(request.count);
    if (request.run_length != 0) {
      result = launch(&fill_runs<Generator>, count, stream, generator, request);
      return;
    }
    const uint64_t blocks = (request.offset % kPositions + count + kPositions - 1) / kPositions;
    result =
        launch(&fill<Generator>, blocks, stream, generator, static_cast<typename Generator::Out*>(request.destination),
               count, request.key, request.subsequence, request.offset, blocks);
  });
  return result;
}

}  // namespace concord::cuda
