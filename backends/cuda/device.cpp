#include "backends/cuda/device.h"

#include <algorithm>
#include <cctype>

#include "backends/cuda/profiler/peak_flops.h"
#include "backends/cuda/status.h"
#include "platform/sdk/checks.hpp"

namespace concord::cuda {

DeviceGuard::DeviceGuard(int32_t device) {
  int current = 0;
  check_cuda(cudaGetDevice(&current), "cudaGetDevice");
  if (current == device) return;
  check_cuda(cudaSetDevice(device), "cudaSetDevice");
  previous_ = current;
}

DeviceGuard::~DeviceGuard() {
  if (previous_ >= 0) cudaSetDevice(previous_);
}

Devices::Devices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) fail_cuda(error, "cudaGetDeviceCount", "is the NVIDIA driver (libcuda.so.1) installed?");
  if (count == 0) sdk::fail(CONCORD_STATUS_UNAVAILABLE, "cudaGetDeviceCount found no device");
  count_ = count;
}

void Devices::check(int32_t device) const { sdk::check_device(device, count_); }

bool Devices::all_have(cudaDeviceAttr attribute) const {
  for (int32_t device = 0; device < count_; ++device) {
    int value = 0;
    if (cudaDeviceGetAttribute(&value, attribute, device) != cudaSuccess || value == 0) return false;
  }
  return true;
}

void Devices::info(int32_t device, concord_device_info* out_info) {
  check(device);
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  char bus_id[sizeof concord_device_info::pci_bus_id] = "";
  check_cuda(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, device), "cudaDeviceGetPCIBusId");
  std::transform(bus_id, bus_id + sizeof bus_id, bus_id, [](char c) { return static_cast<char>(std::tolower(c)); });
  concord_device_info info{};
  info.multiprocessors = properties.multiProcessorCount;
  info.total_memory = static_cast<int64_t>(properties.totalGlobalMem);
  info.capability_major = properties.major;
  info.capability_minor = properties.minor;
  sdk::write_string(info.name, properties.name);
  sdk::write_string(info.architecture, sdk::text("sm_%d%d", properties.major, properties.minor));
  sdk::write_string(info.pci_bus_id, bus_id);
  const PeakFlops peak = peak_flops_of(properties.name);
  info.peak_flops_f32 = peak.f32;
  info.peak_flops_bf16 = peak.bf16;
  info.peak_flops_f16 = peak.f16;
  sdk::write_sized(info, out_info);
}

void Devices::set_current(int32_t device) {
  check(device);
  check_cuda(cudaSetDevice(device), "cudaSetDevice");
}

int32_t Devices::get_current() {
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

void Devices::synchronize(int32_t device) {
  check(device);
  const DeviceGuard here(device);
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

int32_t Devices::can_access_peer(int32_t device, int32_t peer) {
  check(device);
  check(peer);
  if (device == peer) return 1;
  int can = 0;
  check_cuda(cudaDeviceCanAccessPeer(&can, device, peer), "cudaDeviceCanAccessPeer");
  return can;
}

void Devices::enable_peer_access(int32_t device, int32_t peer) {
  check(device);
  check(peer);
  if (device == peer) return;
  const DeviceGuard here(device);
  const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();
    return;
  }
  check_cuda(error, "cudaDeviceEnablePeerAccess");
}

int32_t device_of(const void* pointer, concord_stream stream, int32_t device_count) {
  if (device_count == 1) return 0;
  if (stream != nullptr) {
    cudaPointerAttributes attributes{};
    check_cuda(cudaPointerGetAttributes(&attributes, pointer), "cudaPointerGetAttributes");
    if (attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged) return attributes.device;
  }
  int current = 0;
  check_cuda(cudaGetDevice(&current), "cudaGetDevice");
  return current;
}

}  // namespace concord::cuda
