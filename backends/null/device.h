// The device table: which devices there are. The contract of each method is in platform/abi/device.h.
#pragma once

#include "platform/abi/device.h"

namespace concord::null {

class Devices {
 public:
  int32_t count();
  void info(int32_t device, concord_device_info* out_info);
  void set_current(int32_t device);
  int32_t get_current();
  void synchronize(int32_t device);
  // optional: can_access_peer, enable_peer_access
};

}  // namespace concord::null
