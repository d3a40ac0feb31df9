/* The rng table: counter-based random numbers (Philox 4x32-10), the same bits on every vendor.
 *
 * The value at a position depends on nothing but (kind, dtype, key, subsequence, position, low, high): not on threads,
 * not on how a buffer is split. Element i of a request has position offset + i; with runs (since 1.1) it has position
 * offset + (i / run_length) * run_stride + i % run_length, so that one request fills a block of rows of a matrix.
 * platform/sdk/philox.hpp is the definition, written once for hosts and devices. A generator's state is therefore three
 * integers: key, subsequence, offset.
 */
#ifndef CONCORD_PLATFORM_ABI_RNG_H_
#define CONCORD_PLATFORM_ABI_RNG_H_

#include "status.h"
#include "types.h"

#define CONCORD_RNG_TABLE "rng"

typedef int32_t concord_rng_kind;
/* clang-format off */
#define CONCORD_RNG_BITS    1  /* raw bits: I32 (one word per position), I64 (two words per position) */
#define CONCORD_RNG_UNIFORM 2  /* [low, high): F32, F64, BF16, F16 (those two: the F32 value, rounded to nearest) */
#define CONCORD_RNG_NORMAL  3  /* mean low, standard deviation high: F32, F64, BF16, F16 (from the F32 value) */
#define CONCORD_RNG_INTEGER 4  /* low <= x < high, from integer_low and integer_high: I32, I64 */
/* clang-format on */

/* The caller sets struct_size; fields beyond it count as 0. A host asks only plugins of version 1.1 or later for
 * runs: an older one would fill without them. */
typedef struct concord_rng_request {
  uint32_t struct_size;
  concord_rng_kind kind;
  concord_dtype dtype;
  int32_t reserved;  /* 0, else INVALID_ARGUMENT */
  void* destination; /* device memory, count elements */
  int64_t count;
  uint64_t key;
  uint64_t subsequence;
  uint64_t offset; /* position of the first element */
  double low;
  double high;
  int64_t integer_low;
  int64_t integer_high;
  int64_t run_length; /* elements of a run; 0: no runs. since 1.1 */
  int64_t run_stride; /* positions from the start of a run to that of the next; at least 0. since 1.1 */
} concord_rng_request;

/* ------------------------------------------------------------------------------------------------------------------ */
/* The table a plugin fills                                                                                           */
/* ------------------------------------------------------------------------------------------------------------------ */

typedef struct concord_rng_table {
  concord_table_header header;
  void* self;

  /* Enqueues. The request is read before the call returns. A kind and dtype not listed above: INVALID_ARGUMENT.
   * Threads: any thread, any time. required, since 1.0 */
  concord_status (*fill)(void* self, const concord_rng_request* request, concord_stream stream);
} concord_rng_table;

#endif /* CONCORD_PLATFORM_ABI_RNG_H_ */
