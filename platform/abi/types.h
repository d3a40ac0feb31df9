/* Types that several tables share: element types, reductions, handles, and the header that every table begins with. */
#ifndef CONCORD_PLATFORM_ABI_TYPES_H_
#define CONCORD_PLATFORM_ABI_TYPES_H_

#include <stddef.h>
#include <stdint.h>

/* Every table and every struct that may grow begins with its own size, as known to the side that filled it. Tables grow
 * only at the end. The same major means that the common prefix agrees; a minor counts the additions within a major. */
typedef struct concord_table_header {
  uint32_t struct_size;
  uint16_t major;
  uint16_t minor;
} concord_table_header;

/* Handles of the vendor itself (cudaStream_t, cudaEvent_t, aclrtStream, aclrtEvent): a stream that libtorch made can be
 * passed directly. A null stream is the device's default stream; the cpu plugin runs its work inline, on the calling
 * thread. Plugins that refuse a null stream declare the capability stream.null = 0. */
typedef struct concord_stream_opaque* concord_stream;
typedef struct concord_event_opaque* concord_event;
/* A communicator is the plugin's own object. */
typedef struct concord_comm_opaque* concord_comm;

/* Element types. Zero is not a type, so that a forgotten field is an error. */
typedef int32_t concord_dtype;
/* clang-format off */
#define CONCORD_DTYPE_F32   1
#define CONCORD_DTYPE_F64   2
#define CONCORD_DTYPE_BF16  3
#define CONCORD_DTYPE_F16   4
#define CONCORD_DTYPE_I8    5
#define CONCORD_DTYPE_I16   6
#define CONCORD_DTYPE_I32   7
#define CONCORD_DTYPE_I64   8
#define CONCORD_DTYPE_U8    9
#define CONCORD_DTYPE_BOOL 10  /* one byte, 0 or 1 */
/* clang-format on */

/* Reductions. bool: SUM and MAX are "or", PROD and MIN are "and", AVG is unsupported. Integers: SUM and PROD wrap; AVG
 * is the sum divided by the number of ranks, rounded towards zero. MIN and MAX of floats: if any rank's element is NaN,
 * the result is NaN. */
typedef int32_t concord_reduce_op;
/* clang-format off */
#define CONCORD_REDUCE_SUM  1
#define CONCORD_REDUCE_PROD 2
#define CONCORD_REDUCE_MIN  3
#define CONCORD_REDUCE_MAX  4
#define CONCORD_REDUCE_AVG  5
/* clang-format on */

/* A named property of a plugin. value 0 means "no"; note is then the reason, as a phrase for a person. A name that is
 * not listed counts as 0. Owns: the plugin, forever. */
typedef struct concord_capability {
  const char* name;
  int64_t value;
  const char* note; /* may be null */
} concord_capability;

#endif /* CONCORD_PLATFORM_ABI_TYPES_H_ */
