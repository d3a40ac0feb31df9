#include "backends/cuda/profiler/profiler.h"

#include <cuda_profiler_api.h>
#include <nvtx3/nvToolsExt.h>

#include "backends/cuda/status.h"
#include "platform/sdk/checks.hpp"

namespace concord::cuda {
namespace {

// Without a profiler NVTX does not report whether a pop had a matching push, so the depth is counted here.
thread_local int64_t open_ranges = 0;

}  // namespace

void Profiler::range_push(const char* name) {
  sdk::check_not_null(name, "name");
  nvtxRangePushA(name);
  ++open_ranges;
}

void Profiler::range_pop() {
  if (open_ranges == 0) sdk::fail(CONCORD_STATUS_FAILED_PRECONDITION, "range_pop: this thread has no open range");
  nvtxRangePop();
  --open_ranges;
}

void Profiler::mark(const char* name) {
  sdk::check_not_null(name, "name");
  nvtxMarkA(name);
}

void Profiler::start() { check_cuda(cudaProfilerStart(), "cudaProfilerStart"); }

void Profiler::stop() { check_cuda(cudaProfilerStop(), "cudaProfilerStop"); }

}  // namespace concord::cuda
