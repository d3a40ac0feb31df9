/* The functions that the host gives to a plugin when it opens it.
 *
 * Threads: every function may be called from any thread at any time after concord_plugin_open has begun.
 * Owns: the host owns this struct for the life of the process; a plugin may keep the pointer.
 */
#ifndef CONCORD_PLATFORM_ABI_HOST_H_
#define CONCORD_PLATFORM_ABI_HOST_H_

#include "types.h"

typedef int32_t concord_log_level;
/* clang-format off */
#define CONCORD_LOG_DEBUG 1
#define CONCORD_LOG_INFO  2
#define CONCORD_LOG_WARN  3
#define CONCORD_LOG_ERROR 4
/* clang-format on */

typedef struct concord_host {
  concord_table_header header;
  void* self; /* first argument of every function below */

  /* Stores the message that explains the failure the calling thread is about to return. The text is copied.
   * Null or "" clears it. since 1.0 */
  void (*set_error_detail)(void* self, const char* text);

  /* Writes one line through the host's logger, so that all output has the same form. The text is copied. since 1.0 */
  void (*log)(void* self, concord_log_level level, const char* text);

  /* Looks up a setting: "cpu.devices"; "comm.timeout", the seconds that communicators of this process may wait;
   * "comm.master", rank 0's machine. By default the environment answers: the name in capitals, dots as underscores,
   * after CONCORD_ (CONCORD_CPU_DEVICES). Null: not set. Owns: the host; valid until the process ends. since 1.0 */
  const char* (*config)(void* self, const char* name);
} concord_host;

#endif /* CONCORD_PLATFORM_ABI_HOST_H_ */
