// The device table over the ACL runtime.
//
// ACL has no device on a new thread: almost every call there fails with 107002 until aclrtSetDevice was called. So each
// method sets the device that it needs for its duration (DeviceGuard) and restores the previous one, because torch_npu
// caches a thread's device without asking ACL. A thread that had none keeps the device that it was given: ACL cannot
// take it back. Devices are never reset and ACL is never finalised: others in the process use them too.
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
  // Initialises ACL; it is fine if another library (torch_npu) has already done so. UNAVAILABLE with the vendor's
  // message if there is no driver or no device.
  explicit Devices(const Acl& acl);

  int32_t count() { return count_; }
  void info(int32_t device, concord_device_info* out_info);
  void set_current(int32_t device);
  int32_t get_current();
  void synchronize(int32_t device);
  int32_t can_access_peer(int32_t device, int32_t peer);
  void enable_peer_access(int32_t device, int32_t peer);

  const Acl& acl() const { return acl_; }
  // INVALID_ARGUMENT if there is no such device.
  void check(int32_t device) const;
  // The thread's device; if it has none it gets the one that this process used first, so that no process puts a
  // context on a device that belongs to another.
  int32_t ensure_current();
  // Makes |device| the thread's. Returns the former one; -1 if that was |device| too or none.
  int32_t exchange(int32_t device);
  // The device that |stream| belongs to: known for streams of this plugin, else the thread's. A null stream is
  // INVALID_ARGUMENT.
  int32_t device_of(concord_stream stream);

  std::string soc_name() const;

  sdk::Handles<concord_stream, int32_t> streams{"stream"};  // with its device

 private:
  const Acl& acl_;
  int32_t count_ = 0;
  std::atomic<int32_t> first_used_{-1};
  std::mutex peers_mutex_;                                                        // guards peers_
  std::set<std::pair<int32_t, int32_t>> peers_ CONCORD_GUARDED_BY(peers_mutex_);  // that have access
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
  int32_t previous_;  // -1: nothing to put back
};

}  // namespace concord::ascend
