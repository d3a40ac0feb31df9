// Devices, contexts, peers.
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "backends/ascend/sim/runtime/acl/acl.h"
#include "backends/ascend/sim/runtime/capture.h"
#include "backends/ascend/sim/runtime/error.h"
#include "backends/ascend/sim/runtime/machine.h"
#include "backends/ascend/sim/runtime/memory/memory.h"
#include "backends/ascend/sim/runtime/settings.h"

using namespace concord::ascend::abi;
using namespace concord::ascend::sim;

namespace {

void check_timeout(int32_t milliseconds) {
  if (milliseconds > 0 || milliseconds == -1) return;
  fail(kRtParamInvalid, text("a timeout of %d ms; it must be > 0, or -1 for none", milliseconds));
}

// Switches of the process that nothing here depends on; read back as they were set.
std::atomic<int32_t> saturation_mode{1};  // 1: infinities and NaN as in IEEE 754
std::atomic<int64_t> system_options[3] = {};

std::atomic<int64_t>& system_option(int32_t option) {
  if (option < 0 || option > 2) fail(kRtParamInvalid, text("system option %d is unknown; there are 0 to 2", option));
  return system_options[option];
}

void set_option(int32_t option, int64_t value) { system_option(option).store(value); }

void get_option(int32_t option, int64_t* value) {
  require_not_null(value, "value");
  *value = system_option(option).load();
}

constexpr int64_t kAiCores = 24;  // of an Ascend 910B2
constexpr int64_t kVectorCores = 48;
constexpr int64_t kL2Bytes = int64_t{192} << 20;

}  // namespace

// ------------------------------------------------------------------------------------------------ which device is used

aclError aclrtGetDeviceCount(uint32_t* count) {
  return guarded(
      __func__,
      [&] {
        require_not_null(count, "count");
        *count = static_cast<uint32_t>(machine().device_count());
        if (*count == 0)
          fail(kRtNoDevice, "this machine has no device (CONCORD_SIM_NPU_DEVICES, ASCEND_RT_VISIBLE_DEVICES)");
      },
      Init::kNotNeeded);
}

aclError aclrtSetDevice(int32_t device) {
  return guarded(__func__, [&] { machine().set_device(device); });
}

aclError aclrtResetDevice(int32_t device) {
  return guarded(__func__, [&] { machine().reset_device(device, false); });
}

int32_t aclrtResetDeviceForce(int32_t device) {
  return guarded(__func__, [&] { machine().reset_device(device, true); });
}

aclError aclrtGetDevice(int32_t* device) {
  return guarded(__func__, [&] {
    require_not_null(device, "device");
    *device = machine().current()->device;
  });
}

int32_t aclrtGetPrimaryCtxState(int32_t device, uint32_t* flags, int32_t* active) {
  return guarded(__func__, [&] {
    require_not_null(active, "active");
    if (flags != nullptr) *flags = 0;
    *active = machine().is_set(device) ? 1 : 0;
  });
}

aclError aclrtCreateContext(aclrtContext* context, int32_t device) {
  return guarded(__func__, [&] {
    require_not_null(context, "context");
    *context = machine().create_context(device);
  });
}

aclError aclrtDestroyContext(aclrtContext context) {
  return guarded(__func__, [&] { machine().destroy_context(context); });
}

aclError aclrtSetCurrentContext(aclrtContext context) {
  return guarded(__func__, [&] { machine().make_current(context); });
}

aclError aclrtGetCurrentContext(aclrtContext* context) {
  return guarded(__func__, [&] {
    require_not_null(context, "context");
    *context = machine().current()->handle;
  });
}

// ------------------------------------------------------------------------------------------------------------- waiting

aclError aclrtSynchronizeDevice() {
  return guarded(__func__, [] {
    const int32_t device = machine().current()->device;
    Capture::require_allowed("waiting for a device");
    machine().synchronize_device(device, -1);
  });
}

aclError aclrtSynchronizeDeviceWithTimeout(int32_t milliseconds) {
  return guarded(__func__, [&] {
    const int32_t device = machine().current()->device;
    check_timeout(milliseconds);
    Capture::require_allowed("waiting for a device");
    machine().synchronize_device(device, milliseconds);
  });
}

aclError aclrtDeviceTaskAbort(int32_t device, uint32_t /*milliseconds: it takes none*/) {
  return guarded(__func__, [&] {
    machine().require_device(device);
    for (const auto& stream : machine().streams_of(device)) stream->queue()->abort(kRtDeviceTaskAbort);
  });
}

aclError aclrtSetOpWaitTimeout(uint32_t seconds) {
  return guarded(__func__, [&] { set_event_wait_timeout(std::chrono::seconds(seconds)); });
}

// Running operators cannot be stopped.
aclError aclrtSetOpExecuteTimeOut(uint32_t /*seconds*/) {
  return guarded(__func__, [] {});
}

int32_t aclrtSetOpExecuteTimeOutV2(uint64_t microseconds, uint64_t* actual) {
  return guarded(__func__, [&] {
    require_not_null(actual, "actual");
    *actual = microseconds;
  });
}

// ---------------------------------------------------------------------------------------------------- what a device is

aclError aclrtGetDeviceInfo(uint32_t device, aclrtDevAttr attribute, int64_t* value) {
  return guarded(__func__, [&] {
    require_not_null(value, "value");
    machine().require_device(static_cast<int32_t>(device));
    switch (static_cast<uint32_t>(attribute)) {
      case 1: *value = 6; return;  // processors of its own
      case kDevAttrAicoreNum:
      case 102: *value = kAiCores; return;
      case kDevAttrVectorCoreNum: *value = kVectorCores; return;
      case kDevAttrTotalMemory: *value = static_cast<int64_t>(settings().memory_bytes); return;
      case 302: *value = kL2Bytes; return;
      case 402: *value = device; return;
      default: fail(kRtFeatureNotSupport, text("device attribute %u is not simulated", attribute));
    }
  });
}

int32_t aclGetDeviceCapability(uint32_t device, int32_t info, int64_t* value) {
  return guarded(__func__, [&] {
    require_not_null(value, "value");
    machine().require_device(static_cast<int32_t>(device));
    switch (info) {
      case 0: *value = kAiCores; return;
      case 1: *value = kVectorCores; return;
      case 2: *value = kL2Bytes; return;
      default: fail(kAclInvalidParam, text("device info %d is unknown; there are 0 to 2", info));
    }
  });
}

int32_t aclrtDeviceGetBareTgid(int32_t* pid) {
  return guarded(__func__, [&] {
    require_not_null(pid, "pid");
    *pid = ::getpid();
  });
}

int32_t aclrtDeviceGetUuid(int32_t device, aclrtUuid* uuid) {
  return guarded(__func__, [&] {
    require_not_null(uuid, "uuid");
    machine().require_device(device);
    std::memcpy(uuid->bytes, "sim-npu device ", sizeof uuid->bytes);
    uuid->bytes[15] = static_cast<char>(visible_devices()[static_cast<size_t>(device)]);
  });
}

int32_t aclrtSetDeviceSatMode(int32_t mode) {
  return guarded(__func__, [&] {
    machine().current();
    if (mode != 0 && mode != 1) fail(kRtParamInvalid, text("saturation mode %d; there are 0 and 1", mode));
    saturation_mode.store(mode);
  });
}

int32_t aclrtGetDeviceSatMode(int32_t* mode) {
  return guarded(__func__, [&] {
    require_not_null(mode, "mode");
    *mode = saturation_mode.load();
  });
}

int32_t aclrtSetSysParamOpt(int32_t option, int64_t value) {
  return guarded(__func__, [&] { set_option(option, value); });
}
int32_t aclrtGetSysParamOpt(int32_t option, int64_t* value) {
  return guarded(__func__, [&] { get_option(option, value); });
}
int32_t aclrtCtxSetSysParamOpt(int32_t option, int64_t value) {
  return guarded(__func__, [&] { set_option(option, value); });
}
int32_t aclrtCtxGetSysParamOpt(int32_t option, int64_t* value) {
  return guarded(__func__, [&] { get_option(option, value); });
}

// --------------------------------------------------------------------------------------------------------------- peers

aclError aclrtDeviceCanAccessPeer(int32_t* can, int32_t device, int32_t peer) {
  return guarded(__func__, [&] {
    require_not_null(can, "can");
    machine().require_device(device);
    machine().require_device(peer);
    *can = device == peer ? 0 : 1;
  });
}

aclError aclrtDeviceEnablePeerAccess(int32_t peer, uint32_t flags) {
  return guarded(__func__, [&] {
    if (flags != 0) fail(kRtFeatureNotSupport, text("flags 0x%x; they must be 0", flags));
    machine().enable_peer(machine().current()->device, peer, true);
  });
}

aclError aclrtDeviceDisablePeerAccess(int32_t peer) {
  return guarded(__func__, [&] { machine().enable_peer(machine().current()->device, peer, false); });
}
