// Device memory, pinned host memory, copies (platform/abi/memory.h). Buffers are move-only; a size of 0 gives null.
#pragma once

#include <utility>

#include "platform/cpp/stream.hpp"
#include "platform/cpp/types.hpp"

namespace concord {

// The base of Buffer and HostBuffer: a range of bytes with one owner.
class Memory {
 public:
  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  template <class Element>
  Element* as() const {
    return static_cast<Element*>(data_);
  }

  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

 protected:
  explicit Memory(int64_t bytes) : bytes_(bytes) {}
  Memory(Memory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  ~Memory() = default;

  void swap(Memory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

  void* data_ = nullptr;
  int64_t bytes_;
};

// Device memory. No queued work may still use it when it is destroyed.
class Buffer : public Memory {
 public:
  Buffer(Device device, int64_t bytes) : Memory(bytes), device_(device) {
    device_.platform().call<&concord_memory_table::allocate>(device_.index(), bytes_, &data_);
  }
  // Stream-ordered: usable by work queued on |stream| from now on, released when the stream reaches the point of the
  // destructor. The stream must outlive the buffer.
  Buffer(const Stream& stream, int64_t bytes)
      : Memory(bytes), device_(stream.device()), stream_(stream.native()), on_stream_(true) {
    device_.platform().call<&concord_memory_table::allocate_on_stream>(device_.index(), bytes_, stream_, &data_);
  }
  Buffer(Buffer&& other) noexcept
      : Memory(std::move(other)), device_(other.device_), stream_(other.stream_), on_stream_(other.on_stream_) {}
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer taken(std::move(other));
    Memory::swap(taken);
    std::swap(device_, taken.device_);
    std::swap(stream_, taken.stream_);
    std::swap(on_stream_, taken.on_stream_);
    return *this;
  }
  ~Buffer() {
    if (data_ == nullptr) return;
    const Platform& platform = device_.platform();
    if (on_stream_) {
      platform.call_or_log<&concord_memory_table::release_on_stream>(device_.index(), data_, stream_);
    } else {
      platform.call_or_log<&concord_memory_table::release>(device_.index(), data_);
    }
  }

  const Device& device() const { return device_; }

 private:
  Device device_;
  concord_stream stream_ = nullptr;
  bool on_stream_ = false;
};

// Host memory that devices of |platform| copy from and to without the host waiting.
class HostBuffer : public Memory {
 public:
  HostBuffer(Platform platform, int64_t bytes) : Memory(bytes), platform_(platform) {
    platform_.call<&concord_memory_table::allocate_host>(bytes_, &data_);
  }
  HostBuffer(HostBuffer&& other) noexcept : Memory(std::move(other)), platform_(other.platform_) {}
  HostBuffer& operator=(HostBuffer&& other) noexcept {
    HostBuffer taken(std::move(other));
    Memory::swap(taken);
    std::swap(platform_, taken.platform_);
    return *this;
  }
  ~HostBuffer() {
    if (data_ != nullptr) platform_.call_or_log<&concord_memory_table::release_host>(data_);
  }

  const Platform& platform() const { return platform_; }

 private:
  Platform platform_;
};

// Waits: until the bytes are copied. Not ordered with any stream.
inline void copy(const Platform& platform, void* destination, const void* source, int64_t bytes, CopyKind kind) {
  platform.call<&concord_memory_table::copy>(destination, source, bytes, abi(kind));
}

// Enqueues. Both buffers may be reused after the stream has passed this point.
inline void copy(const Stream& stream, void* destination, const void* source, int64_t bytes, CopyKind kind) {
  stream.platform().call<&concord_memory_table::copy_on_stream>(destination, source, bytes, abi(kind), stream.native());
}

// Enqueues a copy between two devices; |stream| belongs to either.
inline void copy_peer(const Stream& stream, void* destination, const Device& destination_device, const void* source,
                      const Device& source_device, int64_t bytes) {
  stream.platform().call<&concord_memory_table::copy_peer_on_stream>(destination, destination_device.index(), source,
                                                                     source_device.index(), bytes, stream.native());
}

// Enqueues; every byte of device memory becomes the low 8 bits of |value|.
inline void fill(const Stream& stream, void* destination, int32_t value, int64_t bytes) {
  stream.platform().call<&concord_memory_table::fill_on_stream>(destination, value, bytes, stream.native());
}

// Describes the memory that |pointer| points into; interior pointers count.
inline concord_pointer_info describe_pointer(const Platform& platform, const void* pointer) {
  concord_pointer_info info{};
  info.struct_size = sizeof info;
  platform.call<&concord_memory_table::describe_pointer>(pointer, &info);
  return info;
}

}  // namespace concord
