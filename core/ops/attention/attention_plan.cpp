#include "core/ops/attention/attention_plan.h"

#include <algorithm>

namespace concord::ops {
namespace {

// Queries that share a rectangle of keys. With as many queries as the window has keys, half of the rectangle is
// visible; fewer would make calls too small, more would waste time on masked keys.
int64_t chunk_size(int64_t window) { return window == 0 ? 512 : std::clamp<int64_t>(window, 64, 512); }

struct Sequence {
  int64_t query, queries;
  int64_t key, keys;
};

void plan_sequence(const Sequence& s, AttentionMask mask, std::vector<AttentionPiece>& plan) {
  using Sight = AttentionPiece::Sight;
  if (s.queries == 0) return;
  const int64_t window = mask.window >= s.keys ? 0 : mask.window;
  if (!mask.causal || s.keys == 1) {
    plan.push_back({s.query, s.queries, s.key, s.keys, Sight::all});
    return;
  }
  if (s.queries == s.keys && window == 0) {
    plan.push_back({s.query, s.queries, s.key, s.keys, Sight::causal});
    return;
  }
  const int64_t ahead = s.keys - s.queries;  // index of the first query among the keys
  const int64_t chunk = chunk_size(window);
  for (int64_t begin = 0; begin < s.queries; begin += chunk) {
    const int64_t end = std::min(begin + chunk, s.queries);
    const int64_t first = window == 0 ? 0 : std::max<int64_t>(0, begin + ahead - window + 1);
    plan.push_back({s.query + begin, end - begin, s.key + first, end + ahead - first, Sight::windowed,
                    begin + ahead - first, window});
  }
}

}  // namespace

std::vector<AttentionPiece> attention_plan(int64_t queries, int64_t keys, std::span<const int64_t> cu_seqlens,
                                           AttentionMask mask) {
  std::vector<AttentionPiece> plan;
  if (cu_seqlens.empty()) plan_sequence({0, queries, 0, keys}, mask, plan);
  for (size_t i = 0; i + 1 < cu_seqlens.size(); ++i) {
    const int64_t begin = cu_seqlens[i];
    const int64_t length = cu_seqlens[i + 1] - begin;
    plan_sequence({begin, length, begin, length}, mask, plan);
  }
  return plan;
}

std::vector<AttentionPiece> in_blocks(const std::vector<AttentionPiece>& plan, int64_t queries) {
  using Sight = AttentionPiece::Sight;
  std::vector<AttentionPiece> blocks;
  for (AttentionPiece piece : plan) {
    if (piece.sight == Sight::causal) piece.sight = Sight::windowed;  // equivalent to a shift of 0 and no window
    for (int64_t begin = 0; begin < piece.queries; begin += queries) {
      AttentionPiece block = piece;
      block.query += begin;
      block.queries = std::min(queries, piece.queries - begin);
      if (piece.sight == Sight::windowed) {
        block.shift += begin;
        block.keys = std::min(piece.keys, block.shift + block.queries);
      }
      blocks.push_back(block);
    }
  }
  return blocks;
}

}  // namespace concord::ops
