// The device table over the ACL runtime.
//
// A new thread has no device in ACL: almost every call fails with 107002 until aclrtSetDevice was called. So each
// method sets its device while it runs (DeviceGuard) and restores the previous one, because torch_npu caches a thread's
// device. A thread that had no device keeps the new one: ACL cannot unset it. Devices are never reset and ACL is never
// finalised, because other libraries in the process use them too.
#pragma once

#include <atomic>
#include <mutex>
#include <set>
#include <utility>

#include "backends/ascend/cann.h"
#include "platform/base/thread_safety.hpp"
#include "platform/sdk/handles.hpp"

namespace concord::ascend {

inline abi::aclrtStream vendor(concord_stream stream) { return stream; }
inline abi::aclrtEvent vendor(concord_event event) { return event; }

class Devices {
 public:
  // Initialises ACL, unless another library (torch_npu) has done so. Throws UNAVAILABLE with the vendor's message if
  // there is no driver or no device.
  explicit Devices(const Acl& acl);

  int32_t count() { return count_; }
  void info(int32_t device, concord_device_info* out_info);
  void set_current(int32_t device);
  int32_t get_current();
  void synchronize(int32_t device);
  int32_t can_access_peer(int32_t device, int32_t peer);
  void enable_peer_access(int32_t device, int32_t peer);

  const Acl& acl() const { return acl_; }
  // Throws INVALID_ARGUMENT if |device| does not exist.
  void check(int32_t device) const;
  // Returns the thread's device. If the thread has none, sets the device that this process used first, so that no
  // process creates a context on another process's device.
  int32_t ensure_current();
  // Sets the thread's device. Returns the previous one; -1 if that was |device| or none.
  int32_t exchange(int32_t device);
  // Returns the device of |stream| if this plugin has created it, else the thread's device. Throws INVALID_ARGUMENT for
  // a null stream.
  int32_t device_of(concord_stream stream);

  std::string soc_name() const;

  sdk::Handles<concord_stream, int32_t> streams{"stream"};  // with the device of each

 private:
  const Acl& acl_;
  int32_t count_ = 0;
  std::atomic<int32_t> first_used_{-1};
  std::mutex peers_mutex_;                                                        // guards peers_
  std::set<std::pair<int32_t, int32_t>> peers_ CONCORD_GUARDED_BY(peers_mutex_);  // pairs with access enabled
};

// Makes |device| the calling thread's device while it lives.
class DeviceGuard {
 public:
  DeviceGuard(Devices& devices, int32_t device) : devices_(devices), previous_(devices.exchange(device)) {}
  ~DeviceGuard() {
    if (previous_ >= 0) devices_.acl().aclrtSetDevice(previous_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  Devices& devices_;
  int32_t previous_;  // -1: nothing to restore
};

}  // namespace concord::ascend
