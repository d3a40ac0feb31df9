#include "backends/cuda/status.h"

namespace concord::cuda {

concord_status status_of(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return CONCORD_STATUS_OK;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidDevice:
    case cudaErrorInvalidDevicePointer:
    case cudaErrorInvalidHostPointer:
    case cudaErrorInvalidMemcpyDirection:
    case cudaErrorInvalidResourceHandle: return CONCORD_STATUS_INVALID_ARGUMENT;
    case cudaErrorMemoryAllocation: return CONCORD_STATUS_OUT_OF_MEMORY;
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
    case cudaErrorInitializationError:
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorStubLibrary: return CONCORD_STATUS_UNAVAILABLE;
    case cudaErrorNotSupported: return CONCORD_STATUS_UNIMPLEMENTED;
    case cudaErrorNotReady: return CONCORD_STATUS_FAILED_PRECONDITION;
    default: return CONCORD_STATUS_VENDOR_ERROR;
  }
}

std::string describe(cudaError_t error, const char* call) {
  return sdk::text("%s failed with %d, %s: %s", call, static_cast<int>(error), cudaGetErrorName(error),
                   cudaGetErrorString(error));
}

void fail_cuda(cudaError_t error, const char* call, const std::string& context) {
  cudaGetLastError();
  std::string sentence = describe(error, call);
  if (!context.empty()) sentence += "; " + context;
  sdk::fail(status_of(error), std::move(sentence));
}

}  // namespace concord::cuda
