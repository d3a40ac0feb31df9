// Context parallelism: which tokens a rank has, and which of them attend to which keys. Pure values; threads: any.
//
// A sequence is split into 2 cp chunks, and rank r takes chunks r and 2 cp - 1 - r: with a causal mask early chunks are
// cheap and late ones expensive, and so every rank gets the same amount of work. Packed sequences are split separately,
// so each has a length that 2 cp divides; a rank's tokens are its two chunks of the first sequence, then those of the
// second, ...
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace concord {

// A run of tokens [begin, begin + count).
struct TokenRun {
  int64_t begin;
  int64_t count;
  bool operator==(const TokenRun&) const = default;
};

// The tokens of |rank| in their order, as runs of the whole. |lengths| are those of the packed sequences; one for a
// batch of equal ones. Throws ConfigError, with the length and the degree, if 2 cp does not divide one of them.
std::vector<TokenRun> context_slices(std::span<const int64_t> lengths, int64_t cp, int64_t rank);

// The positions in the whole sequence of every rank's tokens, rank by rank: element i of the gathered tensor
// is token order[i].
std::vector<int64_t> gathered_order(std::span<const int64_t> lengths, int64_t cp);

// A rectangle of ring attention: some of a rank's queries with some of the keys that came from another rank, counted
// within the tokens of each. Every query sees every key, or as |causal| says: query i keys 0 to i.
struct RingBlock {
  int64_t query, queries;
  int64_t key, keys;
  bool causal;
  bool operator==(const RingBlock&) const = default;
};

// What |rank| computes when it holds the keys of |owner|. Over all owners every query attends to every key that a
// causal mask allows, once; the work is the same on every rank.
std::vector<RingBlock> ring_blocks(std::span<const int64_t> lengths, int64_t cp, int64_t rank, int64_t owner);

}  // namespace concord
