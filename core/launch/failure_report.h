// What the launcher reports about a job that failed: first those that were stopped and the process that
// failed first, then the rest in short. Pure: a value in, text out.
#pragma once

#include <string>
#include <vector>

#include "core/launch/attempt.h"

namespace concord {

// |last_lines| is what the process that failed first wrote last to standard error.
std::string failure_report(const AttemptResult& result, int first_rank, const std::vector<std::string>& last_lines);

std::string signal_name(int signal);           // "SIGTERM"
std::string describe_wait_status(int status);  // "exit code 3", "killed by SIGSEGV (Segmentation fault)"

}  // namespace concord
