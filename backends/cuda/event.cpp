#include "backends/cuda/event.h"

#include "backends/cuda/status.h"
#include "platform/sdk/checks.hpp"

namespace concord::cuda {

concord_event Events::create(int32_t device, uint32_t flags) {
  devices_.check(device);
  sdk::check_event_flags(flags);
  const DeviceGuard here(device);
  const bool timing = (flags & CONCORD_EVENT_TIMING) != 0;
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, timing ? cudaEventDefault : cudaEventDisableTiming),
             "cudaEventCreateWithFlags");
  const auto handle = reinterpret_cast<concord_event>(event);
  live_.add(handle);
  return handle;
}

void Events::destroy(concord_event event) {
  live_.remove(event);
  check_cuda(cudaEventDestroy(vendor(event)), "cudaEventDestroy");
}

void Events::record(concord_event event, concord_stream stream) {
  sdk::check_not_null(event, "event");
  check_cuda(cudaEventRecord(vendor(event), vendor(stream)), "cudaEventRecord");
}

int32_t Events::query(concord_event event) {
  sdk::check_not_null(event, "event");
  return check_ready(cudaEventQuery(vendor(event)), "cudaEventQuery") ? 1 : 0;
}

void Events::synchronize(concord_event event) {
  sdk::check_not_null(event, "event");
  check_cuda(cudaEventSynchronize(vendor(event)), "cudaEventSynchronize");
}

double Events::elapsed(concord_event start, concord_event end) {
  sdk::check_not_null(start, "start");
  sdk::check_not_null(end, "end");
  float milliseconds = 0;
  const cudaError_t error = cudaEventElapsedTime(&milliseconds, vendor(start), vendor(end));
  // CUDA has one code for an event without timing and one never recorded, and another for one not reached yet.
  if (error == cudaErrorInvalidResourceHandle || error == cudaErrorNotReady) {
    cudaGetLastError();
    sdk::fail(CONCORD_STATUS_FAILED_PRECONDITION,
              describe(error, "cudaEventElapsedTime") +
                  "; both events must be created with CONCORD_EVENT_TIMING, recorded and completed");
  }
  check_cuda(error, "cudaEventElapsedTime");
  return static_cast<double>(milliseconds);
}

}  // namespace concord::cuda
