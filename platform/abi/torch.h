/* How a library that a plugin names in core.torch_libraries can take part in its own loading: optional, for vendors
 * whose libtorch side has to be prepared before it can be loaded, or initialised after it. */
#ifndef CONCORD_PLATFORM_ABI_TORCH_H_
#define CONCORD_PLATFORM_ABI_TORCH_H_

#include <stdint.h>

/* The exported function, if there is one. */
#define CONCORD_TORCH_LIBRARY_ENTRY "concord_torch_library_open"

/* The functions that the host gives. Owns: the host, for the time of the call. Grows only at its end. since 1.1 */
typedef struct concord_torch_host {
  uint32_t struct_size;
  uint32_t reserved;        /* 0 */
  const char* torch_folder; /* the folder of the process's libtorch_cpu.so */
  void* self;

  /* Loads another library globally, searched for in the same places as core.torch_libraries. Returns null, or every
   * place tried with the reason; the text is valid until the next call. */
  const char* (*load)(void* self, const char* name);
} concord_torch_host;

/* Called once per process, after the library was loaded and before the next one of the list is. Returns null, or what
 * went wrong and what to do; Owns: the library, forever. A failed call may be repeated. Threads: one at a time. */
typedef const char* (*concord_torch_library_open_function)(const concord_torch_host* host);

#endif /* CONCORD_PLATFORM_ABI_TORCH_H_ */
