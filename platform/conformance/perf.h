// --perf: latency and bandwidth of each collective by size, as nccl-tests prints them. Nothing is checked here.
#pragma once

#include <string>

#include "platform/conformance/context.h"
#include "platform/conformance/options.h"
#include "platform/conformance/processes/gang.h"

namespace concord::conformance {

// In the parent: measures, prints a table (or JSON), returns the exit code.
int run_perf(const Options& options, const Launch& launch);

// In a worker: a job is the name of a measurement. Its share is the time of one call in microseconds.
bool is_perf_job(const std::string& name);
void run_perf_job(Context& t, const std::string& name);

}  // namespace concord::conformance
