// The plugin's own kernels. Each function enqueues on |stream| of the calling thread's device and returns the status of
// the launch. The rest of the plugin is plain C++ and does not need nvcc.
#pragma once

#include <cuda_runtime_api.h>

#include "platform/abi/concord.h"

namespace concord::cuda {

// Encode |values| into |staged|, and decode them; see staging.hpp. |count|: elements, more than 0.
cudaError_t launch_encode(void* staged, const void* values, int64_t count, concord_dtype dtype,
                          concord_reduce_op reduce, cudaStream_t stream);
cudaError_t launch_decode(void* values, const void* staged, int64_t count, concord_dtype dtype,
                          concord_reduce_op reduce, cudaStream_t stream);

// Writes the random numbers that platform/sdk/philox.hpp defines. |request| must be valid, with a count above 0.
cudaError_t launch_rng(const concord_rng_request& request, cudaStream_t stream);

}  // namespace concord::cuda
