// A whole plugin in one file: one device that is the host's memory, streams that run inline, communicators of one rank.
#include <cstdlib>
#include <cstring>

#include "platform/sdk/plugin.hpp"

namespace {

using concord::sdk::fail;
using concord::sdk::invalid;
using concord::sdk::text;

void expect_device(int32_t device) {
  if (device != 0) invalid(text("device %d; tiny has device 0 alone", device));
}

int64_t element_size(concord_dtype dtype) {
  switch (dtype) {
    case CONCORD_DTYPE_F32:
    case CONCORD_DTYPE_I32: return 4;
    case CONCORD_DTYPE_F64:
    case CONCORD_DTYPE_I64: return 8;
    default: invalid(text("dtype %d; tiny knows f32, f64, i32 and i64", dtype));
  }
}

void copy_bytes(void* destination, const void* source, int64_t bytes) {
  if (bytes < 0) invalid(text("%lld bytes", static_cast<long long>(bytes)));
  if (bytes > 0 && destination != source) std::memcpy(destination, source, static_cast<size_t>(bytes));
}

class Devices {
 public:
  int32_t count() { return 1; }
  void info(int32_t device, concord_device_info* out_info) {
    expect_device(device);
    concord_device_info info{};
    concord::sdk::write_string(info.name, "tiny device");
    concord::sdk::write_sized(info, out_info);
  }
  void set_current(int32_t device) { expect_device(device); }
  int32_t get_current() { return 0; }
  void synchronize(int32_t device) { expect_device(device); }
};

class Memory {
 public:
  void* allocate(int32_t device, int64_t bytes) {
    expect_device(device);
    return allocate_host(bytes);
  }
  void release(int32_t device, void* pointer) {
    expect_device(device);
    std::free(pointer);
  }
  void* allocate_host(int64_t bytes) {
    if (bytes < 0) invalid(text("%lld bytes", static_cast<long long>(bytes)));
    if (bytes == 0) return nullptr;
    void* pointer = std::aligned_alloc(64, (static_cast<size_t>(bytes) + 63) / 64 * 64);
    if (pointer == nullptr) fail(CONCORD_STATUS_OUT_OF_MEMORY, text("%lld bytes", static_cast<long long>(bytes)));
    return pointer;
  }
  void release_host(void* pointer) { std::free(pointer); }
  void copy(void* destination, const void* source, int64_t bytes, concord_copy_kind) {
    copy_bytes(destination, source, bytes);
  }
  void copy_on_stream(void* destination, const void* source, int64_t bytes, concord_copy_kind, concord_stream) {
    copy_bytes(destination, source, bytes);
  }
  void fill_on_stream(void* destination, int32_t value, int64_t bytes, concord_stream) {
    if (bytes > 0) std::memset(destination, value, static_cast<size_t>(bytes));
  }
  void info(int32_t device, int64_t* out_free, int64_t* out_total) {
    expect_device(device);
    *out_free = *out_total = 0;
  }
  void describe_pointer(const void*, concord_pointer_info* out_info) {
    concord_pointer_info info{};
    info.device = -1;
    concord::sdk::write_sized(info, out_info);
  }
};

// All work is done before its call returns, so streams and events have nothing to remember.
class Streams {
 public:
  concord_stream create(int32_t device, int32_t) {
    expect_device(device);
    return reinterpret_cast<concord_stream>(this);
  }
  void destroy(concord_stream) {}
  void synchronize(concord_stream) {}
  int32_t query(concord_stream) { return 1; }
  void wait_event(concord_stream, concord_event) {}
  void priority_range(int32_t, int32_t* out_least, int32_t* out_greatest) { *out_least = *out_greatest = 0; }
};

class Events {
 public:
  concord_event create(int32_t device, uint32_t) {
    expect_device(device);
    return reinterpret_cast<concord_event>(this);
  }
  void destroy(concord_event) {}
  void record(concord_event, concord_stream) {}
  int32_t query(concord_event) { return 1; }
  void synchronize(concord_event) {}
};

// One rank: every collective is a copy.
class Comm {
 public:
  int64_t unique_id_size() { return 1; }
  void unique_id_create(void* out_id, int64_t bytes) {
    if (bytes != 1) invalid(text("%lld bytes for an id of 1", static_cast<long long>(bytes)));
    *static_cast<char*>(out_id) = 0;
  }
  concord_comm init(int32_t device, int32_t world, int32_t rank, const void*, int64_t, const concord_comm_config*) {
    expect_device(device);
    if (world != 1 || rank != 0) fail(CONCORD_STATUS_UNIMPLEMENTED, text("rank %d of %d; tiny is alone", rank, world));
    return reinterpret_cast<concord_comm>(this);
  }
  void destroy(concord_comm) {}
  concord_status async_error(concord_comm) { return CONCORD_STATUS_OK; }
  int32_t rank(concord_comm) { return 0; }
  int32_t size(concord_comm) { return 1; }
  int32_t supports(concord_comm_op, concord_dtype dtype, concord_reduce_op) {
    return dtype == CONCORD_DTYPE_F32 || dtype == CONCORD_DTYPE_F64 || dtype == CONCORD_DTYPE_I32 ||
           dtype == CONCORD_DTYPE_I64;
  }
  void all_reduce(concord_comm, const void* send, void* recv, int64_t count, concord_dtype dtype, concord_reduce_op,
                  concord_stream) {
    copy_bytes(recv, send, count * element_size(dtype));
  }
  void reduce(concord_comm, const void* send, void* recv, int64_t count, concord_dtype dtype, concord_reduce_op,
              int32_t, concord_stream) {
    copy_bytes(recv, send, count * element_size(dtype));
  }
  void broadcast(concord_comm, const void* send, void* recv, int64_t count, concord_dtype dtype, int32_t,
                 concord_stream) {
    copy_bytes(recv, send, count * element_size(dtype));
  }
  void all_gather(concord_comm, const void* send, void* recv, int64_t count, concord_dtype dtype, concord_stream) {
    copy_bytes(recv, send, count * element_size(dtype));
  }
  void reduce_scatter(concord_comm, const void* send, void* recv, int64_t count, concord_dtype dtype, concord_reduce_op,
                      concord_stream) {
    copy_bytes(recv, send, count * element_size(dtype));
  }
  void all_to_all(concord_comm, const void* send, void* recv, int64_t count, concord_dtype dtype, concord_stream) {
    copy_bytes(recv, send, count * element_size(dtype));
  }
  void all_to_all_v(concord_comm, const void* send, const int64_t* send_counts, const int64_t* send_offsets, void* recv,
                    const int64_t*, const int64_t* recv_offsets, concord_dtype dtype, concord_stream) {
    const int64_t size = element_size(dtype);
    copy_bytes(static_cast<char*>(recv) + recv_offsets[0] * size,
               static_cast<const char*>(send) + send_offsets[0] * size, send_counts[0] * size);
  }
  void barrier(concord_comm, concord_stream) {}
  void batch_p2p(concord_comm, const concord_p2p_item*, int64_t count, concord_stream) {
    if (count != 0) fail(CONCORD_STATUS_UNIMPLEMENTED, "tiny has no peer to send to");
  }
};

class Rng {
 public:
  void fill(const concord_rng_request*, concord_stream) { fail(CONCORD_STATUS_UNIMPLEMENTED, "tiny has no rng"); }
};

class TinyPlugin : public concord::sdk::Plugin {
 public:
  TinyPlugin() {
    auto core = concord::sdk::new_table<concord_core_table>(this);
    core.name = "tiny";
    core.version = "1";
    core.vendor = "an example";
    core.label = "tiny";
    core.priority = -1;  // only when asked for
    core.torch_device_type = "cpu";
    add(core);
    add(concord::sdk::device_table(&devices_));
    add(concord::sdk::memory_table(&memory_));
    add(concord::sdk::stream_table(&streams_));
    add(concord::sdk::event_table(&events_));
    add(concord::sdk::comm_table(&comm_));
    add(concord::sdk::rng_table(&rng_));
  }

 private:
  Devices devices_;
  Memory memory_;
  Streams streams_;
  Events events_;
  Comm comm_;
  Rng rng_;
};

}  // namespace

CONCORD_PLUGIN(TinyPlugin)
