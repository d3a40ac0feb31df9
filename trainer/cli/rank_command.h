// The command line of a process that `--nproc` starts: this program again, as one rank.
#pragma once

#include <string>
#include <vector>

namespace concord {

// |words| are those of this process after the program's name. The result begins with the path of the program and lacks
// --nproc, --nnodes, --node_rank, --master_addr and --master_port.
std::vector<std::string> rank_command(const std::vector<std::string>& words);

}  // namespace concord
