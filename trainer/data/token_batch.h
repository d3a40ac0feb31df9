// A micro-batch as plain vectors, built by the loader's thread before it is converted to tensors.
#pragma once

#include <cstdint>
#include <vector>

namespace concord {

inline constexpr int64_t kIgnoredToken = -100;  // equal to kIgnoredLabel of core/models/micro_batch.h

// |rows| sequences of |columns| tokens, row by row; packed: one row with all sequences concatenated.
struct TokenBatch {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<int64_t> ids;
  std::vector<int64_t> labels;        // the next token, kIgnoredToken for none
  std::vector<int64_t> position_ids;  // packed: restarts in each sequence; otherwise empty
  std::vector<int64_t> cu_seqlens;    // packed: [0, ..., columns]; otherwise empty
  std::vector<double> margins = {};   // one per preference pair
  std::vector<int64_t> samples = {};  // source index of each preference pair, -1 for padding; otherwise empty

  bool operator==(const TokenBatch&) const = default;
};

// Counts of a global batch, over all data-parallel ranks, without padding.
struct BatchContents {
  int64_t samples = 0;
  int64_t tokens = 0;
  double squared_lengths = 0;  // sum over sequences: the cost of attention

  bool operator==(const BatchContents&) const = default;
};

}  // namespace concord
