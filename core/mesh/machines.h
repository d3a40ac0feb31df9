// The machines of a job and which ranks are on each of them. Pure values; threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/mesh/rank_layout.h"

namespace concord {

// The ranks begin .. end - 1.
struct RankRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool contains(int64_t rank) const { return begin <= rank && rank < end; }
  std::string to_string() const;  // "rank 3", "ranks 4-7"
  bool operator==(const RankRange&) const = default;
};

// The machines of a job, by the first rank of each, in ascending order.
struct Machines {
  std::vector<int64_t> first;
  int64_t world = 0;

  RankRange ranks_of(size_t machine) const;
  size_t machine_of(int64_t rank) const;
  // Returns the rank on the next machine that keeps a backup of |rank|'s shard; |rank| itself if there is only one
  // machine.
  int64_t backup_rank(int64_t rank) const;
  bool is_first(int64_t rank) const { return first[machine_of(rank)] == rank; }
  bool operator==(const Machines&) const = default;
};

// Returns the machines, given for every rank the first rank of its machine (its rank minus its local rank) and the
// number of ranks there. Throws ConfigError unless the ranks of each machine are consecutive (srun
// --distribution=cyclic).
Machines machines_from(std::span<const int64_t> first_ranks, std::span<const int64_t> local_worlds);

// Throws ConfigError, with the sizes and what to change, unless the ranks of each machine together hold the whole
// model; with |shards_state| also the whole optimizer state, of which each data-parallel rank then holds a shard.
void check_machines_are_whole(const RankLayout& layout, const Machines& machines, bool shards_state);

// Returns the lowest rank of |within|, or of all ranks, on the same pipeline stage as |rank|.
int64_t first_of_stage(const RankLayout& layout, int64_t rank, const std::optional<RankRange>& within);

}  // namespace concord
