// The pairs of queries and keys of an attention as a list of dense rectangles: the plan that attention on the host
// executes. Pure values; threads: any.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace concord::ops {

// Queries [query, query + queries) with keys [key, key + keys), as indices of the tokens of a row of the batch.
struct AttentionPiece {
  enum class Sight {
    all,       // every query sees every key
    causal,    // the same number of keys and queries; query i sees keys 0 to i
    windowed,  // query i sees the keys j with i + shift - window < j <= i + shift
  };
  int64_t query, queries;
  int64_t key, keys;
  Sight sight;
  int64_t shift = 0;   // windowed only
  int64_t window = 0;  // windowed only; 0: no lower end
  bool operator==(const AttentionPiece&) const = default;
};

struct AttentionMask {
  bool causal;
  int64_t window;  // 0: none
};

// Returns a plan in which every query is in one piece with all the keys it attends to. |cu_seqlens| empty: one sequence
// of |queries| and |keys|, whose last tokens are the same one. Otherwise the boundaries of the sequences, for both
// queries and keys. The cost of a window is proportional to its size, not to that of the sequence.
std::vector<AttentionPiece> attention_plan(int64_t queries, int64_t keys, std::span<const int64_t> cu_seqlens,
                                           AttentionMask mask);

// Returns |plan| in pieces of at most |queries|, none of them causal, for callers that compute a piece as one matrix of
// scores.
std::vector<AttentionPiece> in_blocks(const std::vector<AttentionPiece>& plan, int64_t queries);

}  // namespace concord::ops
