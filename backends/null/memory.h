// The memory table: device memory, pinned host memory, copies. The contract of each method is in platform/abi/memory.h.
#pragma once

#include "platform/abi/memory.h"

namespace concord::null {

class Memory {
 public:
  void* allocate(int32_t device, int64_t bytes);
  void release(int32_t device, void* pointer);
  void* allocate_host(int64_t bytes);
  void release_host(void* pointer);
  void copy(void* destination, const void* source, int64_t bytes, concord_copy_kind kind);
  void copy_on_stream(void* destination, const void* source, int64_t bytes, concord_copy_kind kind,
                      concord_stream stream);
  void fill_on_stream(void* destination, int32_t value, int64_t bytes, concord_stream stream);
  void info(int32_t device, int64_t* out_free, int64_t* out_total);
  void describe_pointer(const void* pointer, concord_pointer_info* out_info);
  // optional: allocate_on_stream, release_on_stream, copy_peer_on_stream
};

}  // namespace concord::null
