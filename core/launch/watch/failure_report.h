// What the launcher reports about a job that failed: first those that were stopped and the process that
// failed first, then the rest in short. Pure: a value in, text out.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/launch/job/attempt.h"

namespace concord {

// |last_lines_of|: what a process of this machine wrote last to standard error. Shown are those of the one that failed
// first or, where it has exited without a word, of another one: of ranks that fail for the same reason one says it.
std::string failure_report(const AttemptResult& result, int first_rank,
                           const std::function<std::vector<std::string>(int index)>& last_lines_of);

std::string signal_name(int signal);           // "SIGTERM"
std::string describe_wait_status(int status);  // "exit code 3", "killed by SIGSEGV (Segmentation fault)"

}  // namespace concord
