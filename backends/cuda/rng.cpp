#include "backends/cuda/rng.h"

#include "backends/cuda/kernels.h"
#include "backends/cuda/status.h"
#include "platform/sdk/checks.hpp"

namespace concord::cuda {

void Rng::fill(const concord_rng_request* request, concord_stream stream) {
  sdk::check_rng_request(request);
  if (request->count == 0) return;
  const DeviceGuard here(device_of(request->destination, stream, devices_.count()));
  check_cuda(launch_rng(*request, vendor(stream)), "cudaLaunchKernelEx (rng fill)");
}

}  // namespace concord::cuda
