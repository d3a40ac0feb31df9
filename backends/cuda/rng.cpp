#include "backends/cuda/rng.h"

#include "backends/cuda/kernels.h"
#include "backends/cuda/status.h"
#include "platform/sdk/checks.hpp"

namespace concord::cuda {

void Rng::fill(const concord_rng_request* request, concord_stream stream) {
  const concord_rng_request known = sdk::read_rng_request(request);
  if (known.count == 0) return;
  const DeviceGuard here(device_of(known.destination, stream, devices_.count()));
  check_cuda(launch_rng(known, vendor(stream)), "cudaLaunchKernelEx (rng fill)");
}

}  // namespace concord::cuda
