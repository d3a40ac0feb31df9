/* The stream table: queues of work on a device. Work of one stream runs in the order it was queued; work of different
 * streams runs in any order, unless an event orders it.
 *
 * Threads: any thread, any time; calls on one stream take effect in the order they were made.
 * Errors of queued work surface at a later call that waits for it.
 */
#ifndef CONCORD_PLATFORM_ABI_STREAM_H_
#define CONCORD_PLATFORM_ABI_STREAM_H_

#include "status.h"
#include "types.h"

#define CONCORD_STREAM_TABLE "stream"

/* A function of the host queued on a stream. It must not call back into the plugin and must not throw. */
typedef void (*concord_host_function)(void* user);

/* ------------------------------------------------------------------------------------------------------------------ */
/* The table a plugin fills                                                                                           */
/* ------------------------------------------------------------------------------------------------------------------ */

typedef struct concord_stream_table {
  concord_table_header header;
  void* self;

  /* |priority| within priority_range, 0 is the default; lower numbers run first. A value outside the range is clamped.
   * Owns: the caller, until destroy. required, since 1.0 */
  concord_status (*create)(void* self, int32_t device, int32_t priority, concord_stream* out_stream);

  /* Work already queued still runs to completion. Only streams from create may be destroyed. required, since 1.0 */
  concord_status (*destroy)(void* self, concord_stream stream);

  /* Waits: until everything queued on |stream| so far is done, and returns its first error, once. required, since
   * 1.0 */
  concord_status (*synchronize)(void* self, concord_stream stream);

  /* Never waits. out_done is 1 when everything queued so far is done, else 0. required, since 1.0 */
  concord_status (*query)(void* self, concord_stream stream, int32_t* out_done);

  /* Enqueues: later work on |stream| starts only after the record of |event| that is the current one at this call. An
   * event never recorded holds nothing back. A later record of the same event does not change this wait.
   * required, since 1.0 */
  concord_status (*wait_event)(void* self, concord_stream stream, concord_event event);

  /* The least and the most urgent priority; greatest <= 0 <= least, both 0 if there are none. required, since 1.0 */
  concord_status (*priority_range)(void* self, int32_t device, int32_t* out_least, int32_t* out_greatest);

  /* Enqueues a call of |function|(|user|) on some thread of the host.
   * (optional, default: UNIMPLEMENTED) since 1.0 */
  concord_status (*launch_host)(void* self, concord_stream stream, concord_host_function function, void* user);
} concord_stream_table;

#endif /* CONCORD_PLATFORM_ABI_STREAM_H_ */
