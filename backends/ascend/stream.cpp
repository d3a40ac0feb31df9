#include "backends/ascend/stream.h"

#include <algorithm>

#include "backends/ascend/status.h"
#include "platform/sdk/checks.hpp"

namespace concord::ascend {

concord_stream Streams::create(int32_t device, int32_t priority) {
  int32_t least = 0;
  int32_t greatest = 0;
  priority_range(device, &least, &greatest);
  const DeviceGuard here(devices_, device);
  const Acl& acl = devices_.acl();
  abi::aclrtStream stream = nullptr;
  check_acl(acl,
            acl.aclrtCreateStreamWithConfig(&stream, static_cast<uint32_t>(std::clamp(priority, greatest, least)),
                                            abi::kStreamFastLaunch | abi::kStreamFastSync),
            "aclrtCreateStreamWithConfig");
  const auto handle = static_cast<concord_stream>(stream);
  devices_.streams.add(handle, device);
  return handle;
}

void Streams::destroy(concord_stream stream) {
  const DeviceGuard here(devices_, devices_.streams.remove(stream));
  const Acl& acl = devices_.acl();
  const abi::aclError waited = acl.aclrtSynchronizeStream(vendor(stream));
  if (waited != abi::kAclSuccess) {
    sdk::log(CONCORD_LOG_WARN,
             "destroying a stream whose work has failed: " + describe(acl, waited, "aclrtSynchronizeStream"));
  }
  communicators_.forget(stream);
  check_acl(acl, acl.aclrtDestroyStream(vendor(stream)), "aclrtDestroyStream");
}

void Streams::synchronize(concord_stream stream) {
  const DeviceGuard here(devices_, devices_.device_of(stream));
  const Acl& acl = devices_.acl();
  const abi::aclError error = acl.aclrtSynchronizeStream(vendor(stream));
  if (error == abi::kAclSuccess) return;
  const std::string message = describe(acl, error, "aclrtSynchronizeStream");
  communicators_.report(stream, message);
  sdk::fail(status_of(error), message);
}

int32_t Streams::query(concord_stream stream) {
  const DeviceGuard here(devices_, devices_.device_of(stream));
  const Acl& acl = devices_.acl();
  abi::aclrtStreamStatus status = abi::kStreamNotReady;
  check_acl(acl, acl.aclrtStreamQuery(vendor(stream), &status), "aclrtStreamQuery");
  return status == abi::kStreamComplete ? 1 : 0;
}

void Streams::wait_event(concord_stream stream, concord_event event) {
  sdk::check_not_null(event, "event");
  const DeviceGuard here(devices_, devices_.device_of(stream));
  const Acl& acl = devices_.acl();
  check_acl(acl, acl.aclrtStreamWaitEvent(vendor(stream), vendor(event)), "aclrtStreamWaitEvent");
}

void Streams::priority_range(int32_t device, int32_t* out_least, int32_t* out_greatest) {
  devices_.check(device);
  sdk::check_not_null(out_least, "out_least");
  sdk::check_not_null(out_greatest, "out_greatest");
  *out_least = 0;
  *out_greatest = 0;
  const Acl& acl = devices_.acl();
  if (acl.aclrtDeviceGetStreamPriorityRange == nullptr) return;
  const DeviceGuard here(devices_, device);
  check_acl(acl, acl.aclrtDeviceGetStreamPriorityRange(out_least, out_greatest), "aclrtDeviceGetStreamPriorityRange");
}

void Streams::launch_host(concord_stream stream, concord_host_function function, void* user) {
  const Acl& acl = devices_.acl();
  if (acl.aclrtLaunchHostFunc == nullptr) {
    sdk::fail(CONCORD_STATUS_UNIMPLEMENTED,
              sdk::text("CANN %s has no aclrtLaunchHostFunc; it needs CANN 8.5 or later", acl.version.c_str()));
  }
  sdk::check_host_function(function);
  const DeviceGuard here(devices_, devices_.device_of(stream));
  check_acl(acl, acl.aclrtLaunchHostFunc(vendor(stream), function, user), "aclrtLaunchHostFunc");
}

}  // namespace concord::ascend
