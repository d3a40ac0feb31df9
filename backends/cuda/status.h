// Translates CUDA's result codes to those of the ABI, and describes failures.
//
// Every message has the vendor's call, the code's number and name, and the vendor's own message. An unknown code is
// VENDOR_ERROR, never success.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "platform/sdk/plugin.hpp"

namespace concord::cuda {

concord_status status_of(cudaError_t error);

// Returns a message: "cudaMalloc failed with 2, cudaErrorMemoryAllocation: out of memory".
std::string describe(cudaError_t error, const char* call);

// Throws if |error| is not success, and clears CUDA's record of it, so that a later launch does not report it. (An
// error that has broken the context is returned by every call.) |context| is appended to the message.
[[noreturn]] void fail_cuda(cudaError_t error, const char* call, const std::string& context = {});

inline void check_cuda(cudaError_t error, const char* call) {
  if (error != cudaSuccess) [[unlikely]]
    fail_cuda(error, call);
}

// Returns whether a query's result |error| means done; false: not yet. Throws for other codes.
inline bool check_ready(cudaError_t error, const char* call) {
  if (error == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  check_cuda(error, call);
  return true;
}

}  // namespace concord::cuda
