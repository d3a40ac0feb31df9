// The variables that give a process its rank in the job: torchrun's names, so that a program cannot tell the
// difference.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace concord {

struct RankPlace {
  int local_rank = 0;
  int nproc = 1;  // on this machine
  int node_rank = 0;
  int nnodes = 1;
  std::string master_addr;
  int master_port = 0;
  int restart_count = 0;
  int max_restarts = 0;
  int cores = 1;  // number of cores that the launcher may use

  int first_rank = 0;  // on this machine
  int world = 1;

  int rank() const { return first_rank + local_rank; }
};

// |base| ("NAME=value", the launcher's own) with the variables of |place| in it. OMP_NUM_THREADS is set to an even
// share of the cores if there are several processes and it is not set: all cores for each would slow all of them down.
// If CONCORD_PLATFORM has several names, the rank gets its own (core/mesh/platform_map.h).
std::vector<std::string> rank_environment(std::span<const std::string> base, const RankPlace& place);

// Returns whether CONCORD_PLATFORM of this process has several names.
bool has_several_platforms();

// Throws ConfigError if CONCORD_PLATFORM has several names and they do not divide |world| ranks, or together with
// |spares| or a world that may shrink: a spare has loaded its platform before it is known which rank it replaces.
void check_platform_list(int64_t world, int spares, bool may_shrink);

// Returns the index of the rank's device among those that its platform has on this machine: the local rank, unless
// CONCORD_PLATFORM has several names.
int device_index(std::span<const std::string> base, const RankPlace& place);

}  // namespace concord
