// The command line of a process that `--nproc` starts: this program again, as one rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace concord {

// Returns the path of this program and |args|, the arguments of this process, without those of its launcher
// (launch_arguments).
std::vector<std::string> rank_command(const std::vector<std::string>& args);

// The command line of this process after the program's name.
std::vector<std::string> command_line_args();

// The number of ranks of a command with --nproc (0: not given): those it starts, or those of the job that this process
// is one of already. Throws ConfigError if both are asked for.
int64_t ranks_of_command(int64_t nproc);
// This command line again, in |nproc| processes on this machine. Waits for them; returns the exit code.
int launch_ranks(int64_t nproc);

}  // namespace concord
