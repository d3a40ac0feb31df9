// The plan of a parallel load: which rank reads which elements if the ranks of a group need the same tensors, so that
// each byte is read once.
//
// The concatenated values of all tensors are split into rounds of bounded size, and a round into one share per rank.
// Each rank reads its share of a round, and one all-gather distributes all shares: every rank reads the same number of
// bytes, in the order of the tensors. Pure: the same value on every rank. Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace concord {

struct SharedTensor {
  int64_t elements;
  int64_t element_size;  // in bytes, a power of two of at most 64
};

// The elements [begin, end) of a tensor, which the rank |reader| of the group reads.
struct ReadShard {
  size_t tensor;
  int64_t begin;
  int64_t end;
  int64_t reader;
  int64_t at;  // offset in bytes in the reader's share; a multiple of the element's size
  bool operator==(const ReadShard&) const = default;
};

struct SharedRound {
  std::vector<ReadShard> pieces;  // sorted by reader and |at|
  bool operator==(const SharedRound&) const = default;
};

struct ParallelLoadPlan {
  int64_t share = 0;  // bytes per rank and round, including unused padding
  std::vector<SharedRound> rounds;
};

// Plans rounds of about |round_bytes|, over |readers| ranks. Every element is in one piece.
ParallelLoadPlan plan_parallel_load(std::span<const SharedTensor> tensors, int64_t readers, int64_t round_bytes);

}  // namespace concord
