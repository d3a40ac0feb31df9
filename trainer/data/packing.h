// Several sequences in one row, without attention between them (THD: tokens, with boundaries in cu_seqlens).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trainer/data/sources/sample_source.h"
#include "trainer/data/token_batch.h"

namespace concord {

// |length| rounded up to a multiple.
constexpr int64_t padded_length(int64_t length, int64_t multiple) {
  return (length + multiple - 1) / multiple * multiple;
}

// The sequences of each row, as indices into the given lengths.
using PackedRows = std::vector<std::vector<int64_t>>;

// First fit: puts each sequence, in order, into the first row with room for its padded length, otherwise into a new
// one. Pure, O(n log n). Throws ConfigError for a sequence that is longer than |capacity| when padded.
PackedRows pack_first_fit(std::span<const int64_t> lengths, int64_t capacity, int64_t multiple);

// Best fit decreasing, like TRL's "bfd": puts sequences, longest first, into the row with the least room that still
// fits, otherwise into a new one. Ties and sequences within a row are in the order of |lengths|. Rows are sorted by
// their first sequence, so that the order of an epoch still shuffles them. Pure, O(n log n); throws like
// pack_first_fit().
PackedRows pack_best_fit(std::span<const int64_t> lengths, int64_t capacity, int64_t multiple);

// Returns one row of all |samples|, each padded with |pad_id| to a multiple (labels kIgnoredToken). Positions start at
// 0 in each sample and continue through its padding, which belongs to it: cu_seqlens are the padded boundaries.
TokenBatch pack_samples(std::span<const Sample> samples, int64_t multiple, int64_t pad_id);

}  // namespace concord
