/* Extensions: optional tables, found by name through concord_plugin.find_table as the required ones are. A plugin
 * offers what its hardware has; a host asks for a name and has to accept null. Names of this project have no dot;
 * others use a prefix of their own ("acme.power"). Every extension begins with concord_table_header and void* self,
 * grows only at its end, and all its slots are required if the table exists, unless they say otherwise.
 *
 *   graph     work of a stream, captured once and launched again with one call
 *   profiler  named ranges and the vendor's profiler switched on and off
 *   activity  what devices did and when: kernels, copies, fills
 */
#ifndef CONCORD_PLATFORM_ABI_EXTENSIONS_H_
#define CONCORD_PLATFORM_ABI_EXTENSIONS_H_

#include "status.h"
#include "types.h"

/* ------------------------------------------------------------------------------------------------------------------ */
/* graph                                                                                                              */
/* ------------------------------------------------------------------------------------------------------------------ */

#define CONCORD_GRAPH_TABLE "graph"

/* Captured work, ready to be launched. The plugin's own object. */
typedef struct concord_graph_opaque* concord_graph;

/* Threads: any thread, one at a time per graph and per stream. */
typedef struct concord_graph_table {
  concord_table_header header;
  void* self;

  /* From here on, work queued on |stream| is recorded and not run, and so is work of other streams that wait for its
   * events; they have to be joined to |stream| by events before the end. Not the null stream. The calling thread must
   * not do what the vendor cannot capture (waiting, plain allocations) until the end; other threads are not affected.
   * Memory that the work uses has to stay where it is for the life of the graph. since 1.0 */
  concord_status (*begin_capture)(void* self, concord_stream stream);

  /* Ends the capture and makes it ready to launch. Has to be called, by the thread that began, even if something failed
   * in between: then it fails, |stream| works again, and *out_graph is null. Owns: the caller, until destroy. since 1.0
   * */
  concord_status (*end_capture)(void* self, concord_stream stream, concord_graph* out_graph);

  /* Enqueues all of the work on |stream|, of the device of the capture. Launches of one graph run one after another.
   * since 1.0 */
  concord_status (*launch)(void* self, concord_graph graph, concord_stream stream);

  /* No launch of it may still be queued. Null is fine. since 1.0 */
  concord_status (*destroy)(void* self, concord_graph graph);
} concord_graph_table;

/* ------------------------------------------------------------------------------------------------------------------ */
/* profiler                                                                                                           */
/* ------------------------------------------------------------------------------------------------------------------ */

#define CONCORD_PROFILER_TABLE "profiler"

/* Costs almost nothing while no profiler is attached. Threads: any thread, any time; ranges belong to the calling
 * thread. */
typedef struct concord_profiler_table {
  concord_table_header header;
  void* self;

  /* Opens a range called |name| (copied), within the thread's open ranges. since 1.0 */
  concord_status (*range_push)(void* self, const char* name);

  /* Closes the thread's newest range. FAILED_PRECONDITION if none is open. since 1.0 */
  concord_status (*range_pop)(void* self);

  /* One point in time. since 1.0 */
  concord_status (*mark)(void* self, const char* name);

  /* Tells the vendor's profiler to record from here on, and to stop. Without one they do nothing. since 1.0 */
  concord_status (*start)(void* self);
  concord_status (*stop)(void* self);
} concord_profiler_table;

/* ------------------------------------------------------------------------------------------------------------------ */
/* activity                                                                                                           */
/* ------------------------------------------------------------------------------------------------------------------ */

#define CONCORD_ACTIVITY_TABLE "activity"

typedef int32_t concord_activity_kind;
/* clang-format off */
#define CONCORD_ACTIVITY_KERNEL 1
#define CONCORD_ACTIVITY_COPY   2
#define CONCORD_ACTIVITY_FILL   3
/* clang-format on */

/* One piece of work that a device did. Owns: the plugin, for the time of the call that passes it. since 1.3 */
typedef struct concord_activity {
  uint32_t struct_size; /* set by the plugin; later versions add fields at the end */
  concord_activity_kind kind;
  int32_t device;
  int32_t reserved; /* the plugin writes 0 */
  int64_t stream;   /* tells the streams of a device apart; not a concord_stream */
  const char* name; /* human-readable name of the kernel; not null */
  int64_t begin_ns; /* time of CLOCK_MONOTONIC */
  int64_t end_ns;   /* not before begin_ns */
} concord_activity;

typedef void (*concord_activity_function)(void* user, const concord_activity* activity);

/* Costs nothing before start and after stop. Threads: any thread, one at a time. */
typedef struct concord_activity_table {
  concord_table_header header;
  void* self;

  /* Records the work that this process queues from here on, on all devices. UNAVAILABLE if the vendor's library for it
   * is missing, FAILED_PRECONDITION if it records already. since 1.3 */
  concord_status (*start)(void* self);

  /* Ends the recording and passes it to |visit| from the calling thread, ordered by begin_ns. Work that has not ended
   * is not in it: synchronize first. *out_dropped counts work that was done but not recorded, for lack of memory.
   * FAILED_PRECONDITION if nothing records. since 1.3 */
  concord_status (*stop)(void* self, concord_activity_function visit, void* user, int64_t* out_dropped);
} concord_activity_table;

#endif /* CONCORD_PLATFORM_ABI_EXTENSIONS_H_ */
