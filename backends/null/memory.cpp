#include "memory.h"

#include "status.h"

namespace concord::null {

void* Memory::allocate(int32_t, int64_t) { unimplemented("memory.allocate"); }

void Memory::release(int32_t, void*) { unimplemented("memory.release"); }

void* Memory::allocate_host(int64_t) { unimplemented("memory.allocate_host"); }

void Memory::release_host(void*) { unimplemented("memory.release_host"); }

void Memory::copy(void*, const void*, int64_t, concord_copy_kind) { unimplemented("memory.copy"); }

void Memory::copy_on_stream(void*, const void*, int64_t, concord_copy_kind, concord_stream) {
  unimplemented("memory.copy_on_stream");
}

void Memory::fill_on_stream(void*, int32_t, int64_t, concord_stream) { unimplemented("memory.fill_on_stream"); }

void Memory::info(int32_t, int64_t*, int64_t*) { unimplemented("memory.info"); }

void Memory::describe_pointer(const void*, concord_pointer_info*) { unimplemented("memory.describe_pointer"); }

}  // namespace concord::null
