/* The event table: marks in a stream that another stream or the host can wait for.
 *
 * record captures the work queued on the stream so far. Recording again replaces the mark; earlier waits keep waiting
 * for the older one. An event never recorded counts as done. Threads: any thread, one at a time per event; query and
 * synchronize may be called from several threads at the same time.
 */
#ifndef CONCORD_PLATFORM_ABI_EVENT_H_
#define CONCORD_PLATFORM_ABI_EVENT_H_

#include "status.h"
#include "types.h"

#define CONCORD_EVENT_TABLE "event"

#define CONCORD_EVENT_TIMING 0x1u /* the event can be given to elapsed; costs a little more */

/* ------------------------------------------------------------------------------------------------------------------ */
/* The table a plugin fills                                                                                           */
/* ------------------------------------------------------------------------------------------------------------------ */

typedef struct concord_event_table {
  concord_table_header header;
  void* self;

  /* |flags|: those above; others are INVALID_ARGUMENT. Owns: the caller, until destroy. required, since 1.0 */
  concord_status (*create)(void* self, int32_t device, uint32_t flags, concord_event* out_event);

  /* Fine at any time: pending records and waits keep what they need. required, since 1.0 */
  concord_status (*destroy)(void* self, concord_event event);

  /* Enqueues. required, since 1.0 */
  concord_status (*record)(void* self, concord_event event, concord_stream stream);

  /* Never waits. out_done is 1 when the newest record was reached, or there is none. required, since 1.0 */
  concord_status (*query)(void* self, concord_event event, int32_t* out_done);

  /* Waits: until the record that is the newest at this call was reached. required, since 1.0 */
  concord_status (*synchronize)(void* self, concord_event event);

  /* Milliseconds from |start| to |end|, both made with CONCORD_EVENT_TIMING, recorded and done; otherwise
   * FAILED_PRECONDITION. (optional, default: UNIMPLEMENTED) since 1.0 */
  concord_status (*elapsed)(void* self, concord_event start, concord_event end, double* out_milliseconds);
} concord_event_table;

#endif /* CONCORD_PLATFORM_ABI_EVENT_H_ */
