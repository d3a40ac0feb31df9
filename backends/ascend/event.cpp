#include "backends/ascend/event.h"

#include "backends/ascend/status.h"
#include "platform/sdk/checks.hpp"

namespace concord::ascend {

concord_event Events::create(int32_t device, uint32_t flags) {
  devices_.check(device);
  sdk::check_event_flags(flags);
  const bool timing = (flags & CONCORD_EVENT_TIMING) != 0;
  const uint32_t wanted = abi::kEventSync | abi::kEventStreamProgress | (timing ? abi::kEventTimeLine : 0);
  const DeviceGuard here(devices_, device);
  const Acl& acl = devices_.acl();
  abi::aclrtEvent event = nullptr;
  check_acl(acl, acl.aclrtCreateEventExWithFlag(&event, wanted), "aclrtCreateEventExWithFlag");
  const auto handle = static_cast<concord_event>(event);
  live_.add(handle, {device, timing});
  return handle;
}

void Events::destroy(concord_event event) {
  const DeviceGuard here(devices_, live_.remove(event).device);
  const Acl& acl = devices_.acl();
  check_acl(acl, acl.aclrtDestroyEvent(vendor(event)), "aclrtDestroyEvent");
}

int32_t Events::device_of(concord_event event) {
  const auto known = live_.find(event);
  return known ? known->device : devices_.ensure_current();
}

void Events::record(concord_event event, concord_stream stream) {
  sdk::check_not_null(event, "event");
  const DeviceGuard here(devices_, devices_.device_of(stream));
  const Acl& acl = devices_.acl();
  check_acl(acl, acl.aclrtRecordEvent(vendor(event), vendor(stream)), "aclrtRecordEvent");
}

bool Events::is_done(concord_event event) {
  const Acl& acl = devices_.acl();
  abi::aclrtEventRecordedStatus status = abi::kEventRecordedNotReady;
  check_acl(acl, acl.aclrtQueryEventStatus(vendor(event), &status), "aclrtQueryEventStatus");
  return status == abi::kEventRecordedComplete;
}

int32_t Events::query(concord_event event) {
  sdk::check_not_null(event, "event");
  const DeviceGuard here(devices_, device_of(event));
  return is_done(event) ? 1 : 0;
}

void Events::synchronize(concord_event event) {
  sdk::check_not_null(event, "event");
  const DeviceGuard here(devices_, device_of(event));
  const Acl& acl = devices_.acl();
  check_acl(acl, acl.aclrtSynchronizeEvent(vendor(event)), "aclrtSynchronizeEvent");
}

double Events::elapsed(concord_event start, concord_event end) {
  sdk::check_not_null(start, "start");
  sdk::check_not_null(end, "end");
  constexpr const char* kRule = "both events must be created with CONCORD_EVENT_TIMING, recorded and completed";
  const DeviceGuard here(devices_, device_of(start));
  for (const concord_event event : {start, end}) {
    const auto known = live_.find(event);
    if (!known || (known->timing && is_done(event))) continue;
    sdk::fail(CONCORD_STATUS_FAILED_PRECONDITION,
              sdk::text("event.elapsed: the %s event %s; %s", event == start ? "first" : "second",
                        known->timing ? "is not completed" : "was created without timing", kRule));
  }
  const Acl& acl = devices_.acl();
  float milliseconds = 0;
  const abi::aclError error = acl.aclrtEventElapsedTime(&milliseconds, vendor(start), vendor(end));
  if (error == abi::kRtParamInvalid ||
      error == abi::kAclInvalidParam) {  // the codes for an unrecorded event, by release
    sdk::fail(CONCORD_STATUS_FAILED_PRECONDITION, describe(acl, error, "aclrtEventElapsedTime") + "; " + kRule);
  }
  check_acl(acl, error, "aclrtEventElapsedTime");
  return static_cast<double>(milliseconds);
}

}  // namespace concord::ascend
