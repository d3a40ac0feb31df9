/* Concord's plugin ABI: everything that a device plugin and the program have to agree on. Plain C; no C++ type,
 * exception or allocation crosses it.
 *
 * A plugin is a shared library called libconcord_<name>.so that exports one function, concord_plugin_open. It hands out
 * tables of functions by name: core, device, memory, stream, event, comm, rng, and extensions. Each table begins with
 * {struct_size, major, minor} and grows only at its end, so
 *   - an older plugin under a newer host: the host copies what the plugin has and fills the rest with functions that
 *     return UNIMPLEMENTED; no function pointer that host code sees is null;
 *   - a newer plugin under an older host: the host ignores fields beyond the size it knows.
 * A different major is refused with both numbers in the message.
 *
 * Read next, in this order: status.h, types.h, host.h, core.h, device.h, memory.h, stream.h, event.h, comm.h, rng.h.
 * Words in the contracts: Owns (who frees), Threads (who may call), Waits (what the call blocks for), Reuse (when a
 * buffer is free again). "required" slots must be filled; "(optional, default: ...)" ones may be null.
 */
#ifndef CONCORD_PLATFORM_ABI_CONCORD_H_
#define CONCORD_PLATFORM_ABI_CONCORD_H_

/* clang-format off */
#include "status.h"
#include "types.h"
#include "host.h"
#include "core.h"
#include "device.h"
#include "memory.h"
#include "stream.h"
#include "event.h"
#include "comm.h"
#include "rng.h"
#include "extensions.h"
/* clang-format on */

#define CONCORD_ABI_MAJOR 1
/* 1.1: runs in concord_rng_request, stream.host_is_current; 1.2: peak_flops_* in concord_device_info; 1.3: the
 * extension activity */
#define CONCORD_ABI_MINOR 3

#define CONCORD_PLUGIN_ENTRY "concord_plugin_open"

/* An opened plugin. Owns: the plugin, forever (plugins are never unloaded). */
typedef struct concord_plugin {
  concord_table_header header;
  void* self;

  /* The table called |name|, or null. The same pointer each time; valid forever, constant after the first call that
   * returned it. required, since 1.0 */
  const concord_table_header* (*find_table)(void* self, const char* name);
} concord_plugin;

#if defined(__cplusplus)
extern "C" {
#endif

/* The exported function. Called once per process. UNAVAILABLE if the vendor's driver or library is missing, with the
 * reason; *out_plugin is then null. required */
typedef concord_status (*concord_plugin_open_function)(const concord_host* host, const concord_plugin** out_plugin);

#if defined(__cplusplus)
}
#endif

#endif /* CONCORD_PLATFORM_ABI_CONCORD_H_ */
