// The ownership that Stream, Event and Communicator share: move-only, destroyed once, or borrowed and left alone.
#pragma once

#include <utility>

#include "platform/cpp/device.hpp"

namespace concord {

// |Destroy| is the slot that frees a |Raw|. The destructor never throws: a failure is logged.
template <class Raw, auto Destroy>
class Handle {
 public:
  Handle(Handle&& other) noexcept
      : device_(other.device_), raw_(std::exchange(other.raw_, nullptr)), owned_(std::exchange(other.owned_, false)) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      reset();
      device_ = other.device_;
      raw_ = std::exchange(other.raw_, nullptr);
      owned_ = std::exchange(other.owned_, false);
    }
    return *this;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  // The vendor's own handle. Owns: this object, unless it was borrowed.
  Raw native() const { return raw_; }
  const Device& device() const { return device_; }
  const Platform& platform() const { return device_.platform(); }

 protected:
  Handle(Device device, Raw raw, bool owned) : device_(device), raw_(raw), owned_(owned) {}
  ~Handle() { reset(); }

 private:
  void reset() noexcept {
    if (owned_) platform().template call_or_log<Destroy>(raw_);
    owned_ = false;
    raw_ = nullptr;
  }

  Device device_;
  Raw raw_;
  bool owned_;
};

}  // namespace concord
