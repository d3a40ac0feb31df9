// Context parallelism: the tokens of a rank, and which of them attend to which keys. Pure values; threads: any.
//
// A sequence is split into 2 cp chunks, and rank r holds chunks r and 2 cp - 1 - r: with a causal mask early chunks are
// cheap and late ones expensive, so every rank gets the same amount of work. Packed sequences are split separately, so
// 2 cp must divide each length; a rank's tokens are its two chunks of the first sequence, then those of the second, ...
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

// Returns the tokens of |rank| in order, as runs of the whole. |lengths| are those of the packed sequences; one entry
// for a batch of equal lengths. Throws ConfigError, with the length and the degree, unless 2 cp divides all of them.
std::vector<TokenRun> context_slices(std::span<const int64_t> lengths, int64_t cp, int64_t rank);

// Returns the positions in the whole sequence of every rank's tokens, concatenated by rank: element i of the gathered
// tensor is token order[i].
std::vector<int64_t> gathered_order(std::span<const int64_t> lengths, int64_t cp);

// A rectangle of ring attention: some of a rank's queries with some of the keys of another rank, as indices into the
// tokens of each. Every query sees every key, or, if |causal|, query i sees keys 0 to i.
struct RingBlock {
  int64_t query, queries;
  int64_t key, keys;
  bool causal;
  bool operator==(const RingBlock&) const = default;
};

// Returns the blocks that |rank| computes while it holds the keys of |owner|. Over all owners every query attends
// exactly once to every key that a causal mask allows; the work is the same on every rank.
std::vector<RingBlock> ring_blocks(std::span<const int64_t> lengths, int64_t cp, int64_t rank, int64_t owner);

}  // namespace concord
