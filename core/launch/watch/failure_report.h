// The launcher's report of a failed job: first the processes that were stopped and the one that failed first, then a
// summary of the rest. A pure function.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/launch/job/attempt.h"

namespace concord {

// |last_lines_of| returns the last lines of standard error of a process of this machine. The report shows those of the
// process that failed first or, if it wrote nothing, of another one: often only one of several ranks that fail for the
// same reason prints it.
std::string failure_report(const AttemptResult& result, int first_rank,
                           const std::function<std::vector<std::string>(int index)>& last_lines_of);

std::string signal_name(int signal);           // "SIGTERM"
std::string describe_wait_status(int status);  // "exit code 3", "killed by SIGSEGV (Segmentation fault)"

}  // namespace concord
