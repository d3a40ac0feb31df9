/* Extensions: optional tables, found by name through concord_plugin.find_table as the required ones are. A plugin
 * offers what its hardware has; a host asks for a name and has to accept null. Names of this project have no dot;
 * others use a prefix of their own ("acme.power"). Every extension begins with concord_table_header and void* self,
 * grows only at its end, and all its slots are required if the table exists, unless they say otherwise.
 *
 *   graph     work of a stream, captured once and launched again with one call
 *   profiler  named ranges and the vendor's profiler switched on and off
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

#endif /* CONCORD_PLATFORM_ABI_EXTENSIONS_H_ */
