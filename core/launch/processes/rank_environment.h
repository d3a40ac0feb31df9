// The variables that give a process its rank in the job: torchrun's names, so that a program cannot tell the
// difference.
#pragma once

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
std::vector<std::string> rank_environment(std::span<const std::string> base, const RankPlace& place);

}  // namespace concord
