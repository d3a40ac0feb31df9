// A device of a platform, as a value; and the guard that makes it the calling thread's device for a while.
#pragma once

#include <cstdint>

#include "platform/cpp/platform.hpp"
#include "platform/cpp/types.hpp"

namespace concord {

struct MemoryInfo {
  int64_t free_bytes;
  int64_t total_bytes;
};

class Device {
 public:
  Device(Platform platform, int32_t index) : platform_(platform), index_(index) {}
  // The calling thread's device.
  static Device current(Platform platform) {
    int32_t index = 0;
    platform.call<&concord_device_table::get_current>(&index);
    return {platform, index};
  }

  const Platform& platform() const { return platform_; }
  int32_t index() const { return index_; }

  concord_device_info info() const {
    concord_device_info info{};
    info.struct_size = sizeof info;
    platform_.call<&concord_device_table::info>(index_, &info);
    return info;
  }
  // FLOP/s of matrix products in |dtype|, as the vendor states it; 0 if that is not known.
  double peak_flops(DType dtype) const {
    const concord_device_info all = info();
    switch (dtype) {
      case DType::kF32: return all.peak_flops_f32;
      case DType::kBF16: return all.peak_flops_bf16;
      case DType::kF16: return all.peak_flops_f16;
      default: return 0;
    }
  }
  MemoryInfo memory() const {
    MemoryInfo info{};
    platform_.call<&concord_memory_table::info>(index_, &info.free_bytes, &info.total_bytes);
    return info;
  }

  void make_current() const { platform_.call<&concord_device_table::set_current>(index_); }
  // Waits: until all work queued on it by this process is done.
  void synchronize() const { platform_.call<&concord_device_table::synchronize>(index_); }

  bool can_access(const Device& peer) const {
    int32_t can = 0;
    platform_.call<&concord_device_table::can_access_peer>(index_, peer.index_, &can);
    return can != 0;
  }
  void enable_access(const Device& peer) const {
    platform_.call<&concord_device_table::enable_peer_access>(index_, peer.index_);
  }

  friend bool operator==(const Device&, const Device&) = default;

 private:
  Platform platform_;
  int32_t index_;
};

// Makes |device| current until the end of the scope, then what was current before. Belongs to one thread.
class DeviceGuard {
 public:
  explicit DeviceGuard(const Device& device) : before_(Device::current(device.platform())) {
    if (before_.index() != device.index()) device.make_current();
  }
  ~DeviceGuard() { before_.platform().call_or_log<&concord_device_table::set_current>(before_.index()); }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  Device before_;
};

}  // namespace concord
