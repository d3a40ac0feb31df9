// Several sequences in one row, without attention between them (THD: tokens, with boundaries in cu_seqlens).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trainer/data/sample_source.h"
#include "trainer/data/token_batch.h"

namespace concord {

// |length| rounded up to a multiple.
constexpr int64_t padded_length(int64_t length, int64_t multiple) {
  return (length + multiple - 1) / multiple * multiple;
}

// The sequences of each row, as indices into the lengths given.
using PackedRows = std::vector<std::vector<int64_t>>;

// First fit: each sequence, in order, into the first row that has room for its padded length, else into a new one. A
// pure function in O(n log n). Throws ConfigError for a sequence that is longer than |capacity| when padded.
PackedRows pack_first_fit(std::span<const int64_t> lengths, int64_t capacity, int64_t multiple);

// Best fit decreasing, as TRL's "bfd": from the longest sequence to the shortest, each into the row with the least room
// that still holds it, else into a new one. Equal lengths in their order; within a row in the order of |lengths|. Rows
// come in the order of their first sequence, so that an epoch's order still shuffles them. Pure, O(n log n); throws
// alike.
PackedRows pack_best_fit(std::span<const int64_t> lengths, int64_t capacity, int64_t multiple);

// One row of all |samples|, each filled up with |pad_id| to a multiple (labels kIgnoredToken). Positions begin at 0
// with each and continue through its padding, which belongs to it: cu_seqlens are the padded boundaries.
TokenBatch pack_samples(std::span<const Sample> samples, int64_t multiple, int64_t pad_id);

}  // namespace concord
