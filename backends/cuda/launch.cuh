// Launches kernels with one thread per item, or several items per thread if they exceed a grid. For .cu files.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace concord::cuda {

constexpr int kThreads = 256;

// Launches |kernel| so that a loop from global_index() in steps of global_size() covers |items|.
template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), uint64_t items, cudaStream_t stream, Arguments... arguments) {
  constexpr uint64_t kMaxBlocks = 132 * 16;  // twice the blocks that an H200 runs at a time (2048 threads per SM)
  const uint64_t blocks = std::min<uint64_t>((items + kThreads - 1) / kThreads, kMaxBlocks);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

__device__ inline uint64_t global_index() { return static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline uint64_t global_size() { return static_cast<uint64_t>(gridDim.x) * blockDim.x; }

}  // namespace concord::cuda
