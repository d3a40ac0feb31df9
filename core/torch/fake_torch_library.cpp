// A fake of a vendor's libtorch library for device_test.cpp, instead of libtorch_cuda.so etc.: registers a device type
// with libtorch when it is loaded, and takes part in its own loading.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstdlib>
#include <string>

#include "platform/abi/torch.h"

namespace {

// One device, whose streams have their id as native handle.
class FakeGuard : public c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::PrivateUse1> {
 public:
  c10::DeviceIndex deviceCount() const noexcept override { return 4; }
  c10::Device getDevice() const override { return {type(), 0}; }
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::UNSAFE, device, 0x1000 + device.index());
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return reinterpret_cast<void*>(stream.id()); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, FakeGuard)

}  // namespace

// FAKE_TORCH_LOADS names another library to load. Reports an error if that fails, or if a reserved field is not 0.
extern "C" __attribute__((visibility("default"))) const char* concord_torch_library_open(
    const concord_torch_host* host) {
  static std::string message;
  if (host->reserved != 0) return "the host has set a reserved field";
  const char* other = std::getenv("FAKE_TORCH_LOADS");
  if (other == nullptr) return nullptr;
  const char* reason = host->load(host->self, other);
  if (reason == nullptr) return nullptr;
  message = "libtorch in " + std::string(host->torch_folder) + ": " + reason;
  return message.c_str();
}
