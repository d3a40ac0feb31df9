#include "core/parallel/context_slices.h"

#include <fmt/core.h>

#include "core/base/config_error.h"

namespace concord {
namespace {

int64_t chunk_of(int64_t length, int64_t cp) {
  if (length % (2 * cp) != 0) {
    throw ConfigError(
        fmt::format("a sequence of {} tokens under context parallelism over {} ranks; its length must be a multiple of "
                    "{} (pad it, or change context_parallel_size)",
                    length, cp, 2 * cp));
  }
  return length / (2 * cp);
}

}  // namespace

std::vector<TokenRun> context_slices(std::span<const int64_t> lengths, int64_t cp, int64_t rank) {
  std::vector<TokenRun> runs;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    const int64_t chunk = chunk_of(length, cp);
    runs.push_back({begin + rank * chunk, chunk});
    runs.push_back({begin + (2 * cp - 1 - rank) * chunk, chunk});
    begin += length;
  }
  return runs;
}

std::vector<int64_t> gathered_order(std::span<const int64_t> lengths, int64_t cp) {
  std::vector<int64_t> order;
  for (int64_t rank = 0; rank < cp; ++rank) {
    for (const TokenRun& run : context_slices(lengths, cp, rank)) {
      for (int64_t i = 0; i < run.count; ++i) order.push_back(run.begin + i);
    }
  }
  return order;
}

std::vector<RingBlock> ring_blocks(std::span<const int64_t> lengths, int64_t cp, int64_t rank, int64_t owner) {
  std::vector<RingBlock> blocks;
  int64_t begin = 0;  // start of this sequence's tokens on each rank
  for (const int64_t length : lengths) {
    const int64_t chunk = chunk_of(length, cp);
    if (owner == rank) {
      blocks.push_back({begin, 2 * chunk, begin, 2 * chunk, true});  // an early and a late chunk, in order
    } else if (owner < rank) {
      blocks.push_back({begin, 2 * chunk, begin, chunk, false});  // its early chunk precedes both of ours
    } else {
      blocks.push_back({begin + chunk, chunk, begin, 2 * chunk, false});  // our late chunk follows both of its chunks
    }
    begin += 2 * chunk;
  }
  return blocks;
}

}  // namespace concord
