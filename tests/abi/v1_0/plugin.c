/* A plugin as someone wrote it against version 1.0, in C, from the headers in this folder and nothing else. Neither it nor
 * those headers change any more: hosts of every later 1.x must load it. One device, host memory, work done inline, and
 * communicators of one rank. Its optional slots are null, as 1.0 allows. */
#include <stdlib.h>
#include <string.h>

#include "concord.h"

static const concord_host* the_host;
static int32_t current_device;

static concord_status refuse(concord_status status, const char* sentence) {
  the_host->set_error_detail(the_host->self, sentence);
  return status;
}

/* ------------------------------------------------------------------------------------------------------------ device */

static concord_status device_count(void* self, int32_t* out_count) {
  (void)self;
  *out_count = 1;
  return CONCORD_STATUS_OK;
}

static concord_status device_info(void* self, int32_t device, concord_device_info* out_info) {
  (void)self;
  if (device != 0) return refuse(CONCORD_STATUS_INVALID_ARGUMENT, "the frozen plugin has device 0 alone");
  const uint32_t size = out_info->struct_size;
  memset(out_info, 0, sizeof *out_info);
  out_info->struct_size = size;
  strcpy(out_info->name, "frozen device");
  return CONCORD_STATUS_OK;
}

static concord_status device_set_current(void* self, int32_t device) {
  (void)self;
  if (device != 0) return refuse(CONCORD_STATUS_INVALID_ARGUMENT, "the frozen plugin has device 0 alone");
  current_device = device;
  return CONCORD_STATUS_OK;
}

static concord_status device_get_current(void* self, int32_t* out_device) {
  (void)self;
  *out_device = current_device;
  return CONCORD_STATUS_OK;
}

static concord_status device_synchronize(void* self, int32_t device) {
  (void)self;
  (void)device;
  return CONCORD_STATUS_OK;
}

static const concord_device_table device_table = {
    .header = {sizeof(concord_device_table), CONCORD_ABI_MAJOR, CONCORD_ABI_MINOR},
    .count = device_count,
    .info = device_info,
    .set_current = device_set_current,
    .get_current = device_get_current,
    .synchronize = device_synchronize,
};

/* ------------------------------------------------------------------------------------------------------------ memory */

static concord_status memory_allocate_host(void* self, int64_t bytes, void** out_pointer) {
  (void)self;
  *out_pointer = bytes > 0 ? aligned_alloc(64, ((size_t)bytes + 63) / 64 * 64) : NULL;
  return CONCORD_STATUS_OK;
}

static concord_status memory_allocate(void* self, int32_t device, int64_t bytes, void** out_pointer) {
  (void)device;
  return memory_allocate_host(self, bytes, out_pointer);
}

static concord_status memory_release_host(void* self, void* pointer) {
  (void)self;
  free(pointer);
  return CONCORD_STATUS_OK;
}

static concord_status memory_release(void* self, int32_t device, void* pointer) {
  (void)device;
  return memory_release_host(self, pointer);
}

static concord_status memory_copy(void* self, void* destination, const void* source, int64_t bytes,
                                  concord_copy_kind kind) {
  (void)self;
  (void)kind;
  if (bytes > 0) memcpy(destination, source, (size_t)bytes);
  return CONCORD_STATUS_OK;
}

static concord_status memory_copy_on_stream(void* self, void* destination, const void* source, int64_t bytes,
                                            concord_copy_kind kind, concord_stream stream) {
  (void)stream;
  return memory_copy(self, destination, source, bytes, kind);
}

static concord_status memory_fill_on_stream(void* self, void* destination, int32_t value, int64_t bytes,
                                            concord_stream stream) {
  (void)self;
  (void)stream;
  if (bytes > 0) memset(destination, value, (size_t)bytes);
  return CONCORD_STATUS_OK;
}

static concord_status memory_info(void* self, int32_t device, int64_t* out_free, int64_t* out_total) {
  (void)self;
  (void)device;
  *out_free = 1 << 20;
  *out_total = 1 << 21;
  return CONCORD_STATUS_OK;
}

static concord_status memory_describe_pointer(void* self, const void* pointer, concord_pointer_info* out_info) {
  (void)self;
  (void)pointer;
  out_info->kind = CONCORD_MEMORY_UNKNOWN;
  out_info->device = -1;
  return CONCORD_STATUS_OK;
}

static const concord_memory_table memory_table = {
    .header = {sizeof(concord_memory_table), CONCORD_ABI_MAJOR, CONCORD_ABI_MINOR},
    .allocate = memory_allocate,
    .release = memory_release,
    .allocate_host = memory_allocate_host,
    .release_host = memory_release_host,
    .copy = memory_copy,
    .copy_on_stream = memory_copy_on_stream,
    .fill_on_stream = memory_fill_on_stream,
    .info = memory_info,
    .describe_pointer = memory_describe_pointer,
};

/* --------------------------------------------------------------------------------------------------- stream and event */

static char stream_object;
static char event_object;

static concord_status stream_create(void* self, int32_t device, int32_t priority, concord_stream* out_stream) {
  (void)self;
  (void)device;
  (void)priority;
  *out_stream = (concord_stream)(void*)&stream_object;
  return CONCORD_STATUS_OK;
}

static concord_status stream_nothing(void* self, concord_stream stream) {
  (void)self;
  (void)stream;
  return CONCORD_STATUS_OK;
}

static concord_status stream_query(void* self, concord_stream stream, int32_t* out_done) {
  (void)self;
  (void)stream;
  *out_done = 1;
  return CONCORD_STATUS_OK;
}

static concord_status stream_wait_event(void* self, concord_stream stream, concord_event event) {
  (void)self;
  (void)stream;
  (void)event;
  return CONCORD_STATUS_OK;
}

static concord_status stream_priority_range(void* self, int32_t device, int32_t* out_least, int32_t* out_greatest) {
  (void)self;
  (void)device;
  *out_least = 0;
  *out_greatest = 0;
  return CONCORD_STATUS_OK;
}

static const concord_stream_table stream_table = {
    .header = {sizeof(concord_stream_table), CONCORD_ABI_MAJOR, CONCORD_ABI_MINOR},
    .create = stream_create,
    .destroy = stream_nothing,
    .synchronize = stream_nothing,
    .query = stream_query,
    .wait_event = stream_wait_event,
    .priority_range = stream_priority_range,
};

static concord_status event_create(void* self, int32_t device, uint32_t flags, concord_event* out_event) {
  (void)self;
  (void)device;
  (void)flags;
  *out_event = (concord_event)(void*)&event_object;
  return CONCORD_STATUS_OK;
}

static concord_status event_nothing(void* self, concord_event event) {
  (void)self;
  (void)event;
  return CONCORD_STATUS_OK;
}

static concord_status event_record(void* self, concord_event event, concord_stream stream) {
  (void)self;
  (void)event;
  (void)stream;
  return CONCORD_STATUS_OK;
}

static concord_status event_query(void* self, concord_event event, int32_t* out_done) {
  (void)self;
  (void)event;
  *out_done = 1;
  return CONCORD_STATUS_OK;
}

static const concord_event_table event_table = {
    .header = {sizeof(concord_event_table), CONCORD_ABI_MAJOR, CONCORD_ABI_MINOR},
    .create = event_create,
    .destroy = event_nothing,
    .record = event_record,
    .query = event_query,
    .synchronize = event_nothing,
};

/* -------------------------------------------------------------------------------------------------------------- comm */

static char comm_object;

static concord_status comm_unique_id_size(void* self, int64_t* out_bytes) {
  (void)self;
  *out_bytes = 8;
  return CONCORD_STATUS_OK;
}

static concord_status comm_unique_id_create(void* self, void* out_id, int64_t bytes) {
  (void)self;
  memset(out_id, 1, (size_t)bytes);
  return CONCORD_STATUS_OK;
}

static concord_status comm_init(void* self, int32_t device, int32_t world, int32_t rank, const void* id,
                                int64_t id_bytes, const concord_comm_config* config, concord_comm* out_comm) {
  (void)self;
  (void)device;
  (void)rank;
  (void)id;
  (void)id_bytes;
  (void)config;
  *out_comm = NULL;
  if (world != 1) return refuse(CONCORD_STATUS_UNIMPLEMENTED, "the frozen plugin has communicators of one rank");
  *out_comm = (concord_comm)(void*)&comm_object;
  return CONCORD_STATUS_OK;
}

static concord_status comm_destroy(void* self, concord_comm comm) {
  (void)self;
  (void)comm;
  return CONCORD_STATUS_OK;
}

static concord_status comm_async_error(void* self, concord_comm comm, concord_status* out_error) {
  (void)self;
  (void)comm;
  *out_error = CONCORD_STATUS_OK;
  return CONCORD_STATUS_OK;
}

static concord_status comm_rank(void* self, concord_comm comm, int32_t* out_rank) {
  (void)self;
  (void)comm;
  *out_rank = 0;
  return CONCORD_STATUS_OK;
}

static concord_status comm_size(void* self, concord_comm comm, int32_t* out_size) {
  (void)self;
  (void)comm;
  *out_size = 1;
  return CONCORD_STATUS_OK;
}

static concord_status comm_supports(void* self, concord_comm_op operation, concord_dtype dtype,
                                    concord_reduce_op reduce, int32_t* out_supported) {
  (void)self;
  (void)operation;
  (void)reduce;
  *out_supported = dtype == CONCORD_DTYPE_F32;
  return CONCORD_STATUS_OK;
}

static concord_status move(const void* send, void* recv, int64_t count) {
  if (count > 0 && send != recv) memcpy(recv, send, (size_t)count * sizeof(float));
  return CONCORD_STATUS_OK;
}

static concord_status comm_all_reduce(void* self, concord_comm comm, const void* send, void* recv, int64_t count,
                                      concord_dtype dtype, concord_reduce_op reduce, concord_stream stream) {
  (void)self;
  (void)comm;
  (void)dtype;
  (void)reduce;
  (void)stream;
  return move(send, recv, count);
}

static concord_status comm_reduce(void* self, concord_comm comm, const void* send, void* recv, int64_t count,
                                  concord_dtype dtype, concord_reduce_op reduce, int32_t root, concord_stream stream) {
  (void)root;
  return comm_all_reduce(self, comm, send, recv, count, dtype, reduce, stream);
}

static concord_status comm_broadcast(void* self, concord_comm comm, const void* send, void* recv, int64_t count,
                                     concord_dtype dtype, int32_t root, concord_stream stream) {
  (void)root;
  return comm_all_reduce(self, comm, send, recv, count, dtype, CONCORD_REDUCE_SUM, stream);
}

static concord_status comm_all_gather(void* self, concord_comm comm, const void* send, void* recv, int64_t count,
                                      concord_dtype dtype, concord_stream stream) {
  return comm_all_reduce(self, comm, send, recv, count, dtype, CONCORD_REDUCE_SUM, stream);
}

static concord_status comm_all_to_all_v(void* self, concord_comm comm, const void* send, const int64_t* send_counts,
                                        const int64_t* send_offsets, void* recv, const int64_t* recv_counts,
                                        const int64_t* recv_offsets, concord_dtype dtype, concord_stream stream) {
  (void)recv_counts;
  return comm_all_gather(self, comm, (const float*)send + send_offsets[0], (float*)recv + recv_offsets[0],
                         send_counts[0], dtype, stream);
}

static concord_status comm_barrier(void* self, concord_comm comm, concord_stream stream) {
  (void)self;
  (void)comm;
  (void)stream;
  return CONCORD_STATUS_OK;
}

static concord_status comm_batch_p2p(void* self, concord_comm comm, const concord_p2p_item* items, int64_t count,
                                     concord_stream stream) {
  (void)self;
  (void)comm;
  (void)items;
  (void)stream;
  return count == 0 ? CONCORD_STATUS_OK : refuse(CONCORD_STATUS_UNIMPLEMENTED, "the frozen plugin has no p2p");
}

static const concord_comm_table comm_table = {
    .header = {sizeof(concord_comm_table), CONCORD_ABI_MAJOR, CONCORD_ABI_MINOR},
    .unique_id_size = comm_unique_id_size,
    .unique_id_create = comm_unique_id_create,
    .init = comm_init,
    .destroy = comm_destroy,
    .async_error = comm_async_error,
    .rank = comm_rank,
    .size = comm_size,
    .supports = comm_supports,
    .all_reduce = comm_all_reduce,
    .reduce = comm_reduce,
    .broadcast = comm_broadcast,
    .all_gather = comm_all_gather,
    .reduce_scatter = comm_all_reduce,
    .all_to_all = comm_all_gather,
    .all_to_all_v = comm_all_to_all_v,
    .barrier = comm_barrier,
    .batch_p2p = comm_batch_p2p,
};

/* --------------------------------------------------------------------------------------------------------------- rng */

static concord_status rng_fill(void* self, const concord_rng_request* request, concord_stream stream) {
  (void)self;
  (void)request;
  (void)stream;
  return refuse(CONCORD_STATUS_UNIMPLEMENTED, "the frozen plugin has no random numbers");
}

static const concord_rng_table rng_table = {
    .header = {sizeof(concord_rng_table), CONCORD_ABI_MAJOR, CONCORD_ABI_MINOR},
    .fill = rng_fill,
};

/* -------------------------------------------------------------------------------------------------- core and the entry */

static const concord_capability capabilities[] = {
    {CONCORD_CAP_MEMORY_HOST_ACCESSIBLE, 1, NULL},
    {CONCORD_CAP_STREAM_HOST_FUNCTIONS, 0, "it was left out on purpose"},
};

static const concord_core_table core_table = {
    .header = {sizeof(concord_core_table), CONCORD_ABI_MAJOR, CONCORD_ABI_MINOR},
    .name = "frozen",
    .version = "1.0",
    .vendor = "any",
    .label = "frozen",
    .priority = -1,
    .capabilities = capabilities,
    .capability_count = 2,
    .torch_device_type = "cpu",
};

static const struct {
  const char* name;
  const concord_table_header* table;
} tables[] = {
    {CONCORD_CORE_TABLE, &core_table.header},     {CONCORD_DEVICE_TABLE, &device_table.header},
    {CONCORD_MEMORY_TABLE, &memory_table.header}, {CONCORD_STREAM_TABLE, &stream_table.header},
    {CONCORD_EVENT_TABLE, &event_table.header},   {CONCORD_COMM_TABLE, &comm_table.header},
    {CONCORD_RNG_TABLE, &rng_table.header},
};

static const concord_table_header* find_table(void* self, const char* name) {
  (void)self;
  for (size_t i = 0; i < sizeof tables / sizeof tables[0]; ++i) {
    if (strcmp(tables[i].name, name) == 0) return tables[i].table;
  }
  return NULL;
}

static const concord_plugin plugin = {
    .header = {sizeof(concord_plugin), CONCORD_ABI_MAJOR, CONCORD_ABI_MINOR},
    .find_table = find_table,
};

__attribute__((visibility("default"))) concord_status concord_plugin_open(const concord_host* host,
                                                                          const concord_plugin** out_plugin) {
  the_host = host;
  *out_plugin = &plugin;
  return CONCORD_STATUS_OK;
}
