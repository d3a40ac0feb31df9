// The memory table over the ACL runtime: aclrtMalloc, pinned host memory, copies.
//
// Every allocation is recorded, because ACL does not check pointers, and because a copy must run on the device that the
// memory belongs to.
// Threads: any thread, any time.
#pragma once

#include <map>
#include <optional>
#include <shared_mutex>

#include "backends/ascend/device.h"
#include "platform/base/thread_safety.hpp"

namespace concord::ascend {

class Memory {
 public:
  explicit Memory(Devices& devices) : devices_(devices) {}

  void* allocate(int32_t device, int64_t bytes);
  void release(int32_t device, void* pointer);
  void* allocate_host(int64_t bytes);
  void release_host(void* pointer);
  // ACL's plain copy, which waits for the copied bytes, not for a stream.
  void copy(void* destination, const void* source, int64_t bytes, concord_copy_kind kind);
  // Copies between host buffers, which ACL rejects on a stream, by a host function (CANN 8.5).
  void copy_on_stream(void* destination, const void* source, int64_t bytes, concord_copy_kind kind,
                      concord_stream stream);
  void copy_peer_on_stream(void* destination, int32_t destination_device, const void* source, int32_t source_device,
                           int64_t bytes, concord_stream stream);
  void fill_on_stream(void* destination, int32_t value, int64_t bytes, concord_stream stream);
  void info(int32_t device, int64_t* out_free, int64_t* out_total);
  void describe_pointer(const void* pointer, concord_pointer_info* out_info);

 private:
  static constexpr int32_t kHost = -1;
  struct Block {
    int64_t bytes;
    int32_t device;  // kHost: pinned host memory
  };

  void add(void* pointer, Block block);
  // Throws INVALID_ARGUMENT if |pointer| is not the start of a block of |device|.
  void remove(void* pointer, int32_t device);
  // Returns the block that contains |pointer|.
  std::optional<Block> find(const void* pointer) const;
  // Returns the device of the first of the two that is device memory, else the thread's device.
  int32_t device_of(const void* destination, const void* source);
  [[noreturn]] void fail_allocation(abi::aclError error, int32_t device, int64_t bytes);

  Devices& devices_;
  mutable std::shared_mutex mutex_;                                 // guards blocks_
  std::map<const void*, Block> blocks_ CONCORD_GUARDED_BY(mutex_);  // by their first byte
};

}  // namespace concord::ascend
