// Kernels of the plugin itself. Each function enqueues on |stream| of the calling thread's device and returns the
// status of the launch. The rest of the backend is plain C++ and does not need nvcc.
#pragma once

#include <cuda_runtime_api.h>

#include "platform/abi/concord.h"

namespace concord::cuda {

// staged[i] = the code of values[i], and back; see staging.hpp. |count| elements, more than 0.
cudaError_t launch_encode(void* staged, const void* values, int64_t count, concord_dtype dtype,
                          concord_reduce_op reduce, cudaStream_t stream);
cudaError_t launch_decode(void* values, const void* staged, int64_t count, concord_dtype dtype,
                          concord_reduce_op reduce, cudaStream_t stream);

// Fills as platform/sdk/philox.hpp defines it. |request| has been checked; its count is more than 0.
cudaError_t launch_rng(const concord_rng_request& request, cudaStream_t stream);

}  // namespace concord::cuda
