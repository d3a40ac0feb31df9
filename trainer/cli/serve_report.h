// `concord report --serve`: the page of a run over HTTP, on this machine only, while the run goes on.
#pragma once

#include <string>

#include "trainer/report/report.h"

namespace concord {

// Prints the address. Waits: for SIGINT or SIGTERM, and then returns. |port| 0 is any free one. Throws ConfigError if
// the folder of |run| does not exist or the port is taken.
void serve_report(const RunDescription& run, int port);

}  // namespace concord
