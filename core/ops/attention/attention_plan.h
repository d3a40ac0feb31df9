// Which queries attend to which keys, as a list of dense rectangles: the plan that attention on the host walks. Pure
// values; threads: any.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace concord::ops {

// Queries [query, query + queries) with keys [key, key + keys), numbered over all tokens of a row of the batch.
struct AttentionPiece {
  enum class Sight {
    all,       // every query sees every key
    causal,    // as many keys as queries; query i sees keys 0 to i
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

// Every query is in one piece with all the keys it attends to. |cu_seqlens| empty: one sequence of |queries| and
// |keys|, whose last tokens are the same one. Else the sequences' boundaries, for queries and keys alike. A window
// costs time in proportion to its size, not to the sequence's.
std::vector<AttentionPiece> attention_plan(int64_t queries, int64_t keys, std::span<const int64_t> cu_seqlens,
                                           AttentionMask mask);

// The same queries and keys in pieces of at most |queries|, none of them causal, for those who compute a piece as one
// matrix of scores.
std::vector<AttentionPiece> in_blocks(const std::vector<AttentionPiece>& plan, int64_t queries);

}  // namespace concord::ops
