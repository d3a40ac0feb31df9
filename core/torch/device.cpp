#include "core/torch/device.h"

#include <c10/core/DeviceType.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <map>
#include <mutex>
#include <string>

#include "core/torch/library.h"

namespace concord {
namespace {

// Performs the part of torch_device that is done once per platform.
c10::DeviceType open_torch_side(const Platform& platform) {
  const concord_core_table& core = platform.core();
  const std::string who = "platform '" + std::string(platform.name()) + "'";
  for (const char* const* library = core.torch_libraries; library != nullptr && *library != nullptr; ++library) {
    torch_side::load_library(*library, platform.path());
  }
  try {
    const c10::DeviceType type = c10::Device(core.torch_device_type).type();
    if (core.torch_device_name != nullptr) c10::register_privateuse1_backend(core.torch_device_name);
    if (!c10::impl::hasDeviceGuardImpl(type)) {
      throw Error(CONCORD_STATUS_UNAVAILABLE,
                  who + " needs libtorch's device type '" + core.torch_device_type +
                      "', which this libtorch was built without; use a libtorch that has it (CONCORD_TORCH)");
    }
    return type;
  } catch (const c10::Error& error) {
    throw Error(CONCORD_STATUS_UNAVAILABLE,
                who + " names a device type that this libtorch rejects: " + error.what_without_backtrace());
  }
}

c10::DeviceType torch_type(const Platform& platform) {
  static std::mutex mutex;
  static std::map<const loader::Tables*, c10::DeviceType> known;  // by identity; plugins are never unloaded
  const std::lock_guard lock(mutex);
  const auto found = known.find(&platform.tables());
  if (found != known.end()) return found->second;
  return known.emplace(&platform.tables(), open_torch_side(platform)).first->second;
}

}  // namespace

c10::Device torch_device(const Platform& platform, int32_t index) {
  const int32_t count = platform.device_count();
  if (index < 0 || index >= count) {
    throw Error(CONCORD_STATUS_INVALID_ARGUMENT, "invalid device " + std::to_string(index) + " of platform '" +
                                                     std::string(platform.name()) + "', which has " +
                                                     std::to_string(count) + " (numbered from 0)");
  }
  const c10::DeviceType type = torch_type(platform);
  if (type == c10::DeviceType::CPU) return c10::Device(type);
  return {type, static_cast<c10::DeviceIndex>(index)};
}

Stream torch_stream(const Device& device) {
  const c10::Device torch = torch_device(device.platform(), device.index());
  if (torch.is_cpu()) return Stream::of_device(device);
  const c10::impl::VirtualGuardImpl guard(torch.type());
  return Stream::borrow(device, static_cast<concord_stream>(guard.getStream(torch).native_handle()));
}

void flush_torch(const Device& device) noexcept {
  try {
    torch_stream(device);  // torch_npu empties its queue before it gives a stream away
  } catch (const std::exception&) {
  }
}

}  // namespace concord
