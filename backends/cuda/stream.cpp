#include "backends/cuda/stream.h"

#include <algorithm>

#include "backends/cuda/status.h"
#include "platform/sdk/checks.hpp"

namespace concord::cuda {

concord_stream Streams::create(int32_t device, int32_t priority) {
  int32_t least = 0;
  int32_t greatest = 0;
  priority_range(device, &least, &greatest);
  const DeviceGuard here(device);
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, std::clamp(priority, greatest, least)),
             "cudaStreamCreateWithPriority");
  const auto handle = reinterpret_cast<concord_stream>(stream);
  live_.add(handle);
  return handle;
}

void Streams::destroy(concord_stream stream) {
  live_.remove(stream);
  communicators_.forget(stream);
  check_cuda(cudaStreamDestroy(vendor(stream)), "cudaStreamDestroy");
}

void Streams::synchronize(concord_stream stream) {
  const cudaError_t error = cudaStreamSynchronize(vendor(stream));
  communicators_.report(stream);  // first: its message is better than CUDA's error for an aborted operation
  check_cuda(error, "cudaStreamSynchronize");
}

int32_t Streams::query(concord_stream stream) {
  return check_ready(cudaStreamQuery(vendor(stream)), "cudaStreamQuery") ? 1 : 0;
}

void Streams::wait_event(concord_stream stream, concord_event event) {
  sdk::check_not_null(event, "event");
  check_cuda(cudaStreamWaitEvent(vendor(stream), vendor(event), 0), "cudaStreamWaitEvent");
}

void Streams::priority_range(int32_t device, int32_t* out_least, int32_t* out_greatest) {
  devices_.check(device);
  sdk::check_not_null(out_least, "out_least");
  sdk::check_not_null(out_greatest, "out_greatest");
  const DeviceGuard here(device);
  check_cuda(cudaDeviceGetStreamPriorityRange(out_least, out_greatest), "cudaDeviceGetStreamPriorityRange");
}

void Streams::launch_host(concord_stream stream, concord_host_function function, void* user) {
  sdk::check_host_function(function);
  check_cuda(cudaLaunchHostFunc(vendor(stream), function, user), "cudaLaunchHostFunc");
}

}  // namespace concord::cuda
