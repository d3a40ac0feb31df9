/* Status codes: what a call returns, what each code means and who can cause it.
 *
 * A call returns a code. If the code is not OK, the callee has first passed one readable sentence to the host
 * (concord_host.set_error_detail): what was given, what was expected, and the vendor's call, code and message if a
 * vendor was involved. The sentence belongs to the calling thread and stays until it is read or replaced.
 */
#ifndef CONCORD_PLATFORM_ABI_STATUS_H_
#define CONCORD_PLATFORM_ABI_STATUS_H_

#include <stdint.h>

/* An int32_t and not an enum, so that its size is fixed and a code from a later version can pass through. A host treats
 * a code it does not know as a failure. */
typedef int32_t concord_status;

/* clang-format off */
#define CONCORD_STATUS_OK                   0
#define CONCORD_STATUS_INVALID_ARGUMENT     1  /* the caller: null, negative, unknown, freed, or ranks that disagree */
#define CONCORD_STATUS_UNIMPLEMENTED        2  /* the plugin: declared unsupported, or older than this slot */
#define CONCORD_STATUS_UNAVAILABLE          3  /* the machine: no driver, no device, a library is missing */
#define CONCORD_STATUS_OUT_OF_MEMORY        4  /* the machine: device, host or shared memory is exhausted */
#define CONCORD_STATUS_TIMEOUT              5  /* a peer: it is alive and did not arrive in time */
#define CONCORD_STATUS_PEER_LOST            6  /* a peer: its process has exited */
#define CONCORD_STATUS_ABORTED              7  /* the caller: this communicator was aborted, here or on another rank */
#define CONCORD_STATUS_FAILED_PRECONDITION  8  /* the caller: right arguments, wrong time (elapsed before record) */
#define CONCORD_STATUS_ABI_MISMATCH         9  /* the build: host and plugin have no common version */
#define CONCORD_STATUS_VENDOR_ERROR        10  /* the vendor's library failed with a code that fits none of the above */
#define CONCORD_STATUS_INTERNAL            11  /* a bug in the plugin or in the host */
/* clang-format on */

#endif /* CONCORD_PLATFORM_ABI_STATUS_H_ */
