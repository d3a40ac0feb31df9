// The spare process: reports that it has loaded everything, and waits until it becomes a rank.
//
// The standard input of a spare is a socket of the launcher's (spare_pool.h). A spare writes one byte when it is
// ready, and gets its environment, "NAME=value" with a zero after each, until the end of the stream.
#pragma once

#include <string>

namespace concord {

inline constexpr const char* kSpareVariable = "CONCORD_SPARE";  // set: this process is one

bool is_spare();
// Afterwards the environment is that of the rank, and standard input is /dev/null. Where the launcher has no more use
// for it, it ends the process with exit code 0. Threads: before others read the environment. Waits: as long as the job
// runs.
void wait_to_become_a_rank();
// In place of what there was: |text| is "NAME=value" with a zero after each.
void set_environment(const std::string& text);

}  // namespace concord
