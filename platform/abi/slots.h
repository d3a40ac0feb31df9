/* The slots of every table as data, one line each, in the order of the table. Code that visits all slots (negotiation,
 * stubs, layers, messages, tests) uses these lists, so that a new slot is one line here besides its declaration.
 *
 *   X(table, slot, required, since, arguments)
 *     required   1: a plugin whose minor is at least |since| must fill it; 0: optional
 *     since      the minor version that added it
 *     arguments  names of the arguments after self, for messages and traces
 */
#ifndef CONCORD_PLATFORM_ABI_SLOTS_H_
#define CONCORD_PLATFORM_ABI_SLOTS_H_

/* clang-format off */
#define CONCORD_DEVICE_SLOTS(X) \
  X(device, count,              1, 0, "out_count") \
  X(device, info,               1, 0, "device,out_info") \
  X(device, set_current,        1, 0, "device") \
  X(device, get_current,        1, 0, "out_device") \
  X(device, synchronize,        1, 0, "device") \
  X(device, can_access_peer,    0, 0, "device,peer,out_can") \
  X(device, enable_peer_access, 0, 0, "device,peer")

#define CONCORD_MEMORY_SLOTS(X) \
  X(memory, allocate,            1, 0, "device,bytes,out_pointer") \
  X(memory, release,             1, 0, "device,pointer") \
  X(memory, allocate_on_stream,  0, 0, "device,bytes,stream,out_pointer") \
  X(memory, release_on_stream,   0, 0, "device,pointer,stream") \
  X(memory, allocate_host,       1, 0, "bytes,out_pointer") \
  X(memory, release_host,        1, 0, "pointer") \
  X(memory, copy,                1, 0, "destination,source,bytes,copy_kind") \
  X(memory, copy_on_stream,      1, 0, "destination,source,bytes,copy_kind,stream") \
  X(memory, copy_peer_on_stream, 0, 0, "destination,destination_device,source,source_device,bytes,stream") \
  X(memory, fill_on_stream,      1, 0, "destination,value,bytes,stream") \
  X(memory, info,                1, 0, "device,out_free,out_total") \
  X(memory, describe_pointer,    1, 0, "pointer,out_info")

#define CONCORD_STREAM_SLOTS(X) \
  X(stream, create,         1, 0, "device,priority,out_stream") \
  X(stream, destroy,        1, 0, "stream") \
  X(stream, synchronize,    1, 0, "stream") \
  X(stream, query,          1, 0, "stream,out_done") \
  X(stream, wait_event,     1, 0, "stream,event") \
  X(stream, priority_range, 1, 0, "device,out_least,out_greatest") \
  X(stream, launch_host,    0, 0, "stream,function,user")

#define CONCORD_EVENT_SLOTS(X) \
  X(event, create,      1, 0, "device,flags,out_event") \
  X(event, destroy,     1, 0, "event") \
  X(event, record,      1, 0, "event,stream") \
  X(event, query,       1, 0, "event,out_done") \
  X(event, synchronize, 1, 0, "event") \
  X(event, elapsed,     0, 0, "start,end,out_milliseconds")

#define CONCORD_COMM_SLOTS(X) \
  X(comm, unique_id_size,   1, 0, "out_bytes") \
  X(comm, unique_id_create, 1, 0, "out_id,bytes") \
  X(comm, init,             1, 0, "device,world,rank,id,id_bytes,config,out_comm") \
  X(comm, split,            0, 0, "parent,ranks,count,config,out_comm") \
  X(comm, destroy,          1, 0, "comm") \
  X(comm, abort,            0, 0, "comm") \
  X(comm, async_error,      1, 0, "comm,out_error") \
  X(comm, rank,             1, 0, "comm,out_rank") \
  X(comm, size,             1, 0, "comm,out_size") \
  X(comm, supports,         1, 0, "operation,dtype,reduce,out_supported") \
  X(comm, all_reduce,       1, 0, "comm,send,recv,count,dtype,reduce,stream") \
  X(comm, reduce,           1, 0, "comm,send,recv,count,dtype,reduce,root,stream") \
  X(comm, broadcast,        1, 0, "comm,send,recv,count,dtype,root,stream") \
  X(comm, all_gather,       1, 0, "comm,send,recv,count,dtype,stream") \
  X(comm, reduce_scatter,   1, 0, "comm,send,recv,count,dtype,reduce,stream") \
  X(comm, all_to_all,       1, 0, "comm,send,recv,count,dtype,stream") \
  X(comm, all_to_all_v,     1, 0, "comm,send,send_counts,send_offsets,recv,recv_counts,recv_offsets,dtype,stream") \
  X(comm, barrier,          1, 0, "comm,stream") \
  X(comm, batch_p2p,        1, 0, "comm,items,count,stream")

#define CONCORD_RNG_SLOTS(X) \
  X(rng, fill, 1, 0, "request,stream")

/* Extensions */
#define CONCORD_GRAPH_SLOTS(X) \
  X(graph, begin_capture, 1, 0, "stream") \
  X(graph, end_capture,   1, 0, "stream,out_graph") \
  X(graph, launch,        1, 0, "graph,stream") \
  X(graph, destroy,       1, 0, "graph")

#define CONCORD_PROFILER_SLOTS(X) \
  X(profiler, range_push, 1, 0, "name") \
  X(profiler, range_pop,  1, 0, "") \
  X(profiler, mark,       1, 0, "name") \
  X(profiler, start,      1, 0, "") \
  X(profiler, stop,       1, 0, "")

#define CONCORD_ACTIVITY_SLOTS(X) \
  X(activity, start, 1, 3, "") \
  X(activity, stop,  1, 3, "visit,user,out_dropped")
/* clang-format on */

#endif /* CONCORD_PLATFORM_ABI_SLOTS_H_ */
