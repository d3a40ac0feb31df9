/* The memory table: device memory, pinned host memory, copies.
 *
 * Sizes are in bytes and signed, so that a negative one can be refused. A size of 0 is fine everywhere: allocations
 * then give null, copies and fills do nothing. Memory is aligned to at least 64 bytes; its contents are undefined.
 * Threads: any thread, any time.
 */
#ifndef CONCORD_PLATFORM_ABI_MEMORY_H_
#define CONCORD_PLATFORM_ABI_MEMORY_H_

#include "status.h"
#include "types.h"

#define CONCORD_MEMORY_TABLE "memory"

typedef int32_t concord_copy_kind;
/* clang-format off */
#define CONCORD_COPY_HOST_TO_HOST     1
#define CONCORD_COPY_HOST_TO_DEVICE   2
#define CONCORD_COPY_DEVICE_TO_HOST   3
#define CONCORD_COPY_DEVICE_TO_DEVICE 4
/* clang-format on */

typedef int32_t concord_memory_kind;
/* clang-format off */
#define CONCORD_MEMORY_UNKNOWN     0  /* not from this plugin: ordinary host memory, as far as it knows */
#define CONCORD_MEMORY_DEVICE      1
#define CONCORD_MEMORY_PINNED_HOST 2
/* clang-format on */

/* The caller sets struct_size; the plugin fills what fits. */
typedef struct concord_pointer_info {
  uint32_t struct_size;
  concord_memory_kind kind;
  int32_t device;   /* -1 if kind is not DEVICE */
  int32_t reserved; /* the plugin writes 0 */
} concord_pointer_info;

/* ------------------------------------------------------------------------------------------------------------------ */
/* The table a plugin fills                                                                                           */
/* ------------------------------------------------------------------------------------------------------------------ */

typedef struct concord_memory_table {
  concord_table_header header;
  void* self;

  /* Owns: the caller, until release. Exhausted: OUT_OF_MEMORY with the requested and the free bytes.
   * required, since 1.0 */
  concord_status (*allocate)(void* self, int32_t device, int64_t bytes, void** out_pointer);

  /* No queued work may still use |pointer|; null is fine. A pointer that is not from allocate on this device, or was
   * released, is INVALID_ARGUMENT if the plugin can tell. required, since 1.0 */
  concord_status (*release)(void* self, int32_t device, void* pointer);

  /* As allocate, but usable only by work queued on |stream| after this call, or ordered after it by events. Never
   * waits for the device. (optional, default: UNIMPLEMENTED) since 1.0 */
  concord_status (*allocate_on_stream)(void* self, int32_t device, int64_t bytes, concord_stream stream,
                                       void** out_pointer);

  /* Releases memory of allocate_on_stream once |stream| has reached this point.
   * (optional, default: UNIMPLEMENTED) since 1.0 */
  concord_status (*release_on_stream)(void* self, int32_t device, void* pointer, concord_stream stream);

  /* Host memory that the device can copy from and to without the host waiting. Owns: the caller, until release_host.
   * required, since 1.0 */
  concord_status (*allocate_host)(void* self, int64_t bytes, void** out_pointer);

  /* Null is fine. required, since 1.0 */
  concord_status (*release_host)(void* self, void* pointer);

  /* Waits: until the bytes are copied. Not ordered with any stream. The ranges must not overlap. required, since 1.0 */
  concord_status (*copy)(void* self, void* destination, const void* source, int64_t bytes, concord_copy_kind kind);

  /* Enqueues; does not wait if host memory is pinned (with pageable host memory it may). Reuse: both buffers after the
   * stream has passed this point. The ranges must not overlap. required, since 1.0 */
  concord_status (*copy_on_stream)(void* self, void* destination, const void* source, int64_t bytes,
                                   concord_copy_kind kind, concord_stream stream);

  /* Enqueues a copy between two devices; |stream| may belong to either. (optional, default: UNIMPLEMENTED) since 1.0 */
  concord_status (*copy_peer_on_stream)(void* self, void* destination, int32_t destination_device, const void* source,
                                        int32_t source_device, int64_t bytes, concord_stream stream);

  /* Enqueues; sets every byte of device memory to the low 8 bits of |value|. required, since 1.0 */
  concord_status (*fill_on_stream)(void* self, void* destination, int32_t value, int64_t bytes, concord_stream stream);

  /* Free and total bytes of |device| now. required, since 1.0 */
  concord_status (*info)(void* self, int32_t device, int64_t* out_free, int64_t* out_total);

  /* Describes the memory that |pointer| points into; interior pointers count. required, since 1.0 */
  concord_status (*describe_pointer)(void* self, const void* pointer, concord_pointer_info* out_info);
} concord_memory_table;

#endif /* CONCORD_PLATFORM_ABI_MEMORY_H_ */
