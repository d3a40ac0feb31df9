// concord.current_platform: the platform of this process in Python, with the names of torch.cuda and of ROLL's
// current_platform. The platform is chosen at the first use, as by current_platform() (platform/cpp/platform.hpp).
#pragma once

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <optional>

#include "platform/cpp/event.hpp"

namespace concord {

// A stream in Python. On a platform where libtorch has streams it is one of libtorch's, so that `with stream` applies
// to libtorch's operators too; on a platform that computes on the host it is one of the plugin's. Threads: as Stream.
class PythonStream {
 public:
  // Returns libtorch's current stream of this thread, or the one that `with stream` has made the current one.
  static std::shared_ptr<PythonStream> current(const Device& device);

  PythonStream(Device device, int32_t priority);

  // Returns the plugin's stream, with all work of libtorch enqueued. Valid as long as this object.
  Stream stream() const;
  const Device& device() const { return device_; }
  // Keeps the memory of |tensor| from being reused before the work queued so far is done.
  void keep(const at::Tensor& tensor) const;

  void enter();  // makes it the current stream of this thread
  void leave();  // undoes the last enter() of this thread

  struct Native;

 private:
  PythonStream(Device device, std::unique_ptr<Native> native);

  Device device_;
  std::shared_ptr<Native> native_;
};

// Returns |stream|, or the current stream if it is None.
std::shared_ptr<PythonStream> stream_or_current(const pybind11::object& stream);

// Returns the device that |index| is: None for the current one, an int, "cuda:1" or a torch.device. Throws ConfigError.
Device device_of(const pybind11::object& index);

// Throws ConfigError, with |call|, unless |tensor| is contiguous and on |device|.
void require_on_device(const char* call, const at::Tensor& tensor, const Device& device);

// Adds current_platform, Stream and Event to the module.
void bind_platform(pybind11::module_& module);

}  // namespace concord
