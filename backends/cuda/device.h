// The device table over the CUDA runtime.
//
// The runtime is linked statically and uses each device's primary context, like libtorch's shared runtime and NCCL's:
// the current device, streams, events and memory of one are valid in the others. Only CUDA's record of the last error
// is separate.
#pragma once

#include <cuda_runtime_api.h>

#include "platform/sdk/plugin.hpp"

namespace concord::cuda {

// Makes |device| the calling thread's device while the guard lives. Costs one cudaGetDevice if it already is.
class DeviceGuard {
 public:
  explicit DeviceGuard(int32_t device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = -1;  // -1: nothing to restore
};

class Devices {
 public:
  // Throws UNAVAILABLE with the vendor's message if there is no driver or no device.
  Devices();

  int32_t count() { return count_; }
  void info(int32_t device, concord_device_info* out_info);
  void set_current(int32_t device);
  int32_t get_current();
  void synchronize(int32_t device);
  int32_t can_access_peer(int32_t device, int32_t peer);
  void enable_peer_access(int32_t device, int32_t peer);

  // Throws INVALID_ARGUMENT if |device| does not exist.
  void check(int32_t device) const;

  // Whether every device has the attribute.
  bool all_have(cudaDeviceAttr attribute) const;

 private:
  int32_t count_ = 0;
};

// Returns the device for work on |pointer| and |stream|: that of the pointer, or for the null stream that of the
// calling thread. Queries nothing if there is one device.
int32_t device_of(const void* pointer, concord_stream stream, int32_t device_count);

inline cudaStream_t vendor(concord_stream stream) { return reinterpret_cast<cudaStream_t>(stream); }
inline cudaEvent_t vendor(concord_event event) { return reinterpret_cast<cudaEvent_t>(event); }

}  // namespace concord::cuda
