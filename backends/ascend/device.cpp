#include "backends/ascend/device.h"

#include "backends/ascend/status.h"
#include "platform/sdk/checks.hpp"

namespace concord::ascend {

Devices::Devices(const Acl& acl) : acl_(acl) {
  const abi::aclError initialised = acl.aclInit(nullptr);
  if (initialised != abi::kAclSuccess && initialised != abi::kAclRepeatInitialize) {
    sdk::fail(CONCORD_STATUS_UNAVAILABLE,
              describe(acl, initialised, "aclInit") +
                  "; is the Ascend driver installed, and may this user open /dev/davinci*?");
  }
  uint32_t count = 0;
  const abi::aclError counted = acl.aclrtGetDeviceCount(&count);
  if (counted != abi::kAclSuccess) {
    sdk::fail(CONCORD_STATUS_UNAVAILABLE,
              describe(acl, counted, "aclrtGetDeviceCount") + "; does `npu-smi info` list a device?");
  }
  if (count == 0) {
    sdk::fail(CONCORD_STATUS_UNAVAILABLE,
              "aclrtGetDeviceCount found no device; does `npu-smi info` list one, and does ASCEND_RT_VISIBLE_DEVICES "
              "leave one visible?");
  }
  count_ = static_cast<int32_t>(count);
}

void Devices::check(int32_t device) const { sdk::check_device(device, count_); }

std::string Devices::soc_name() const {
  const char* name = acl_.aclrtGetSocName();
  return name != nullptr && name[0] != '\0' ? name : "Ascend";
}

int32_t Devices::exchange(int32_t device) {
  int32_t current = -1;
  const abi::aclError error = acl_.aclrtGetDevice(&current);
  if (error != abi::kAclSuccess && error != abi::kRtContextNull) fail_acl(acl_, error, "aclrtGetDevice");
  const bool had_one = error == abi::kAclSuccess;
  if (had_one && current == device) return -1;
  check_acl(acl_, acl_.aclrtSetDevice(device), "aclrtSetDevice");
  int32_t none = -1;
  first_used_.compare_exchange_strong(none, device, std::memory_order_relaxed);
  return had_one ? current : -1;
}

int32_t Devices::ensure_current() {
  int32_t current = -1;
  const abi::aclError error = acl_.aclrtGetDevice(&current);
  if (error == abi::kAclSuccess) return current;
  if (error != abi::kRtContextNull) fail_acl(acl_, error, "aclrtGetDevice");
  const int32_t first = first_used_.load(std::memory_order_relaxed);
  const int32_t device = first >= 0 ? first : 0;
  exchange(device);
  return device;
}

int32_t Devices::device_of(concord_stream stream) {
  if (stream == nullptr) {
    sdk::invalid("the stream is null; on Ascend it must come from stream.create or libtorch (stream.null is 0)");
  }
  if (const auto known = streams.find(stream)) return *known;
  return ensure_current();
}

void Devices::info(int32_t device, concord_device_info* out_info) {
  check(device);
  const auto attribute = [&](abi::aclrtDevAttr which) {
    int64_t value = 0;
    const bool known = acl_.aclrtGetDeviceInfo != nullptr &&
                       acl_.aclrtGetDeviceInfo(static_cast<uint32_t>(device), which, &value) == abi::kAclSuccess;
    return known ? value : 0;
  };
  concord_device_info info{};
  info.multiprocessors = static_cast<int32_t>(attribute(abi::kDevAttrAicoreNum));
  info.total_memory = attribute(abi::kDevAttrTotalMemory);
  if (info.total_memory == 0) {  // an older CANN reports it only to a thread that uses the device
    const DeviceGuard here(*this, device);
    size_t free = 0;
    size_t total = 0;
    check_acl(acl_, acl_.aclrtGetMemInfo(abi::kHbmMem, &free, &total), "aclrtGetMemInfo");
    info.total_memory = static_cast<int64_t>(total);
  }
  sdk::write_string(info.name, acl_.simulator.empty() ? soc_name() : soc_name() + " (" + acl_.simulator + ")");
  sdk::write_string(info.architecture, soc_name());
  sdk::write_sized(info, out_info);
}

void Devices::set_current(int32_t device) {
  check(device);
  exchange(device);
}

int32_t Devices::get_current() {
  int32_t device = 0;
  const abi::aclError error = acl_.aclrtGetDevice(&device);
  if (error == abi::kRtContextNull) return 0;  // none yet: what the contract calls device 0
  check_acl(acl_, error, "aclrtGetDevice");
  return device;
}

void Devices::synchronize(int32_t device) {
  check(device);
  const DeviceGuard here(*this, device);
  check_acl(acl_, acl_.aclrtSynchronizeDevice(), "aclrtSynchronizeDevice");
}

int32_t Devices::can_access_peer(int32_t device, int32_t peer) {
  check(device);
  check(peer);
  if (device == peer) return 1;
  int32_t can = 0;
  check_acl(acl_, acl_.aclrtDeviceCanAccessPeer(&can, device, peer), "aclrtDeviceCanAccessPeer");
  return can != 0 ? 1 : 0;
}

void Devices::enable_peer_access(int32_t device, int32_t peer) {
  check(device);
  check(peer);
  if (device == peer) return;
  const std::lock_guard lock(peers_mutex_);
  if (peers_.contains({device, peer})) return;
  const DeviceGuard here(*this, device);
  check_acl(acl_, acl_.aclrtDeviceEnablePeerAccess(peer, 0), "aclrtDeviceEnablePeerAccess");
  peers_.emplace(device, peer);
}

}  // namespace concord::ascend
