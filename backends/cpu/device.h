// The device table. The devices are names for the same cores and memory: one, or the number in the setting cpu.devices.
#pragma once

#include "platform/abi/device.h"

namespace concord::cpu {

class Streams;

class Devices {
 public:
  Devices(int32_t count, int64_t total_memory, Streams& streams);

  int32_t count();
  void info(int32_t device, concord_device_info* out_info);
  void set_current(int32_t device);
  int32_t get_current();
  // Reports the first failure it finds and leaves it in place for the stream's own synchronize.
  void synchronize(int32_t device);
  int32_t can_access_peer(int32_t device, int32_t peer);
  void enable_peer_access(int32_t device, int32_t peer);

  // Throws INVALID_ARGUMENT if there is no such device.
  void check(int32_t device) const;

 private:
  const int32_t count_;
  const int64_t total_memory_;
  Streams& streams_;
};

}  // namespace concord::cpu
