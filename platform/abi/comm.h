/* The comm table: collectives and point-to-point transfers between the ranks of a communicator.
 *
 * All operations enqueue on a stream of the communicator's device and return immediately; on a null stream of the cpu
 * plugin they run to completion. All ranks of a communicator must call the same operations in the same order with
 * matching arguments. Counts are in elements and signed, so that a negative one can be refused; a count of 0 is fine.
 * Buffers are device memory, aligned to the element. In place means send == recv if the shapes agree; for all_gather
 * send == recv + rank * count, for reduce_scatter recv == send + rank * count. Other overlaps are not allowed. Reuse:
 * buffers belong to the operation until the stream has passed it.
 *
 * Errors: bad arguments are refused at the call. Later failures (PEER_LOST, TIMEOUT, ABORTED, ranks that disagree) are
 * reported by the stream's next synchronize and by async_error, and every later call on that communicator fails with
 * the same code. Threads: any thread, one at a time per communicator; different communicators may be used at the same
 * time.
 */
#ifndef CONCORD_PLATFORM_ABI_COMM_H_
#define CONCORD_PLATFORM_ABI_COMM_H_

#include "status.h"
#include "types.h"

#define CONCORD_COMM_TABLE "comm"

/* Operations, for supports(). */
typedef int32_t concord_comm_op;
/* clang-format off */
#define CONCORD_COMM_ALL_REDUCE     1
#define CONCORD_COMM_REDUCE         2
#define CONCORD_COMM_BROADCAST      3
#define CONCORD_COMM_ALL_GATHER     4
#define CONCORD_COMM_REDUCE_SCATTER 5
#define CONCORD_COMM_ALL_TO_ALL     6
#define CONCORD_COMM_ALL_TO_ALL_V   7
#define CONCORD_COMM_P2P            8
#define CONCORD_COMM_BARRIER        9
/* clang-format on */

typedef int32_t concord_p2p_kind;
#define CONCORD_P2P_SEND 1
#define CONCORD_P2P_RECV 2

/* One transfer of a batch. */
typedef struct concord_p2p_item {
  concord_p2p_kind kind;
  int32_t peer; /* rank within the communicator */
  void* buffer; /* read for SEND, written for RECV */
  int64_t count;
  concord_dtype dtype;
  int32_t reserved; /* 0, else INVALID_ARGUMENT */
} concord_p2p_item;

/* How a communicator is created. The caller sets struct_size; fields beyond it, and a null config, mean the defaults.
 * */
typedef struct concord_comm_config {
  uint32_t struct_size;
  uint32_t reserved;  /* 0, else INVALID_ARGUMENT */
  const char* name;   /* for messages and traces; copied. null: "comm" */
  int64_t timeout_ms; /* how long a rank waits for its peers, in set-up and in an operation; 0: 30 minutes */
} concord_comm_config;

/* ------------------------------------------------------------------------------------------------------------------ */
/* The table a plugin fills                                                                                           */
/* ------------------------------------------------------------------------------------------------------------------ */

typedef struct concord_comm_table {
  concord_table_header header;
  void* self;

  /* Bytes of a unique id: 128 for NCCL, 4108 for HCCL. required, since 1.0 */
  concord_status (*unique_id_size)(void* self, int64_t* out_bytes);

  /* Makes an id on one rank; the caller sends it to the others. |bytes| must be unique_id_size. It is a secret: any
   * process of the same user that has it can join. required, since 1.0 */
  concord_status (*unique_id_create)(void* self, void* out_id, int64_t bytes);

  /* Joins as |rank| of |world|. Waits: until all ranks have called it, or the timeout. Owns: the caller, until destroy
   * or abort+destroy. required, since 1.0 */
  concord_status (*init)(void* self, int32_t device, int32_t world, int32_t rank, const void* id, int64_t id_bytes,
                         const concord_comm_config* config, concord_comm* out_comm);

  /* Makes a communicator of the parent's ranks |ranks|[0..count-1], in that order. Every rank of the parent calls it:
   * members with their own list (several disjoint lists may be given in the same call), the others with count 0, which
   * get null. Waits: for all ranks of the parent. (optional, default: UNIMPLEMENTED) since 1.0 */
  concord_status (*split)(void* self, concord_comm parent, const int32_t* ranks, int32_t count,
                          const concord_comm_config* config, concord_comm* out_comm);

  /* Frees |comm|. Waits: until its queued operations have ended; the peers may destroy theirs later or never.
   * required, since 1.0 */
  concord_status (*destroy)(void* self, concord_comm comm);

  /* Ends queued and running operations with ABORTED, on the calling rank or on every rank: the capability comm.abort
   * says which; destroy must still follow. Never waits. Threads: also while another thread is inside an operation of
   * |comm|. (optional, default: UNIMPLEMENTED) since 1.0 */
  concord_status (*abort)(void* self, concord_comm comm);

  /* Never waits. OK while there is no error, otherwise the first error of |comm|; its message is set as detail.
   * Threads: as abort. required, since 1.0 */
  concord_status (*async_error)(void* self, concord_comm comm, concord_status* out_error);

  /* required, since 1.0 */
  concord_status (*rank)(void* self, concord_comm comm, int32_t* out_rank);
  /* required, since 1.0 */
  concord_status (*size)(void* self, concord_comm comm, int32_t* out_size);

  /* 1 if the operation works with this dtype (and reduction, for operations that reduce; else 0 is passed).
   * required, since 1.0 */
  concord_status (*supports)(void* self, concord_comm_op operation, concord_dtype dtype, concord_reduce_op reduce,
                             int32_t* out_supported);

  /* recv[i] = reduction over the ranks of send[i]. required, since 1.0 */
  concord_status (*all_reduce)(void* self, concord_comm comm, const void* send, void* recv, int64_t count,
                               concord_dtype dtype, concord_reduce_op reduce, concord_stream stream);

  /* As all_reduce, on |root| only; recv of the others is not touched and may be null. required, since 1.0 */
  concord_status (*reduce)(void* self, concord_comm comm, const void* send, void* recv, int64_t count,
                           concord_dtype dtype, concord_reduce_op reduce, int32_t root, concord_stream stream);

  /* recv of every rank = send of |root|; send of the others may be null. required, since 1.0 */
  concord_status (*broadcast)(void* self, concord_comm comm, const void* send, void* recv, int64_t count,
                              concord_dtype dtype, int32_t root, concord_stream stream);

  /* recv[r * count + i] = send[i] of rank r; |count| is what one rank sends. required, since 1.0 */
  concord_status (*all_gather)(void* self, concord_comm comm, const void* send, void* recv, int64_t count,
                               concord_dtype dtype, concord_stream stream);

  /* recv[i] = reduction of send[rank * count + i]; |count| is what one rank receives. required, since 1.0 */
  concord_status (*reduce_scatter)(void* self, concord_comm comm, const void* send, void* recv, int64_t count,
                                   concord_dtype dtype, concord_reduce_op reduce, concord_stream stream);

  /* recv[r * count + i] = send[me * count + i] of rank r; |count| is what goes to one rank. Not in place.
   * required, since 1.0 */
  concord_status (*all_to_all)(void* self, concord_comm comm, const void* send, void* recv, int64_t count,
                               concord_dtype dtype, concord_stream stream);

  /* To rank r: send_counts[r] elements from send + send_offsets[r]; from rank r: recv_counts[r] to recv +
   * recv_offsets[r]. The arrays (size entries each, in elements) are read before the call returns. Not in place.
   * required, since 1.0 */
  concord_status (*all_to_all_v)(void* self, concord_comm comm, const void* send, const int64_t* send_counts,
                                 const int64_t* send_offsets, void* recv, const int64_t* recv_counts,
                                 const int64_t* recv_offsets, concord_dtype dtype, concord_stream stream);

  /* Work queued on |stream| after it starts only when all ranks have reached it. required, since 1.0 */
  concord_status (*barrier)(void* self, concord_comm comm, concord_stream stream);

  /* All transfers of |items| as one operation, in any order among them: no order of sends and receives on two ranks can
   * deadlock. The n-th send from a to b meets b's n-th receive from a, across batches too. The array is read before the
   * call returns. required, since 1.0 */
  concord_status (*batch_p2p)(void* self, concord_comm comm, const concord_p2p_item* items, int64_t count,
                              concord_stream stream);
} concord_comm_table;

#endif /* CONCORD_PLATFORM_ABI_COMM_H_ */
