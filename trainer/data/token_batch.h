// A micro-batch before it is tensors: plain vectors, made by the loader's thread.
#pragma once

#include <cstdint>
#include <vector>

namespace concord {

inline constexpr int64_t kIgnoredToken = -100;  // the same as kIgnoredLabel of core/models/micro_batch.h

// |rows| sequences of |columns| tokens, row by row; packed: one row with all the sequences concatenated.
struct TokenBatch {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<int64_t> ids;
  std::vector<int64_t> labels;        // the token that is to follow, kIgnoredToken for none
  std::vector<int64_t> position_ids;  // packed: starts again with each sequence; else empty
  std::vector<int64_t> cu_seqlens;    // packed: [0, ..., columns]; else empty
  std::vector<double> margins = {};   // of pairs, one for each
  std::vector<int64_t> samples = {};  // of pairs: which of the source's each pair is, -1 for what fills up; else empty

  bool operator==(const TokenBatch&) const = default;
};

// What is in a global batch, over all data-parallel ranks, without padding.
struct BatchContents {
  int64_t samples = 0;
  int64_t tokens = 0;
  double squared_lengths = 0;  // of each sequence, added up: what attention costs

  bool operator==(const BatchContents&) const = default;
};

}  // namespace concord
