// A worker process: opens the plugin, runs the tests that the parent names, and reports.
#pragma once

#include <string>

namespace concord::conformance {

// Returns the exit code. The channel to the parent is kWorkerChannelFd.
int worker_main(int rank, int world, bool quick, const std::string& platform);

}  // namespace concord::conformance
