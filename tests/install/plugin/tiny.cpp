// A complete plugin in one file: one device that is the host's memory, inline streams, communicators of one rank. It
// passes the conformance kit; platform/sdk/checks.hpp has the argument checks.
#include <sys/random.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "platform/sdk/checks.hpp"
#include "platform/sdk/philox_fill.hpp"
#include "platform/sdk/plugin.hpp"

namespace {

namespace sdk = concord::sdk;

void expect_device(int32_t device) { sdk::check_device(device, 1); }

int64_t machine_memory() { return int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE); }

void copy_bytes(void* destination, const void* source, int64_t bytes) {
  if (bytes > 0 && destination != source) std::memcpy(destination, source, static_cast<size_t>(bytes));
}

class Devices {
 public:
  int32_t count() { return 1; }
  void info(int32_t device, concord_device_info* out_info) {
    expect_device(device);
    sdk::check_not_null(out_info, "out_info");
    concord_device_info info{};
    info.total_memory = machine_memory();
    sdk::write_string(info.name, "tiny device");
    sdk::write_string(info.architecture, "tiny");
    sdk::write_sized(info, out_info);
  }
  void set_current(int32_t device) { expect_device(device); }
  int32_t get_current() { return 0; }
  void synchronize(int32_t device) { expect_device(device); }
};

// Records every block, so that an invalid pointer is rejected.
class Memory {
 public:
  void* allocate(int32_t device, int64_t bytes) {
    expect_device(device);
    return take(bytes, CONCORD_MEMORY_DEVICE);
  }
  void release(int32_t device, void* pointer) {
    expect_device(device);
    drop(pointer, CONCORD_MEMORY_DEVICE);
  }
  void* allocate_host(int64_t bytes) { return take(bytes, CONCORD_MEMORY_PINNED_HOST); }
  void release_host(void* pointer) { drop(pointer, CONCORD_MEMORY_PINNED_HOST); }
  void copy(void* destination, const void* source, int64_t bytes, concord_copy_kind kind) {
    sdk::check_copy(destination, source, bytes, kind);
    copy_bytes(destination, source, bytes);
  }
  void copy_on_stream(void* destination, const void* source, int64_t bytes, concord_copy_kind kind, concord_stream) {
    copy(destination, source, bytes, kind);
  }
  void fill_on_stream(void* destination, int32_t value, int64_t bytes, concord_stream) {
    sdk::check_fill(destination, bytes);
    if (bytes > 0) std::memset(destination, value, static_cast<size_t>(bytes));
  }
  void info(int32_t device, int64_t* out_free, int64_t* out_total) {
    expect_device(device);
    sdk::check_not_null(out_free, "out_free");
    sdk::check_not_null(out_total, "out_total");
    const std::lock_guard lock(mutex_);
    *out_total = machine_memory();
    *out_free = *out_total - used_;
  }
  void describe_pointer(const void* pointer, concord_pointer_info* out_info) {
    sdk::check_not_null(out_info, "out_info");
    const std::lock_guard lock(mutex_);
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    const auto after = blocks_.upper_bound(address);
    concord_pointer_info info{};
    info.device = -1;
    if (after != blocks_.begin()) {
      const auto& [begin, block] = *std::prev(after);
      if (address - begin < static_cast<uintptr_t>(block.bytes)) info.kind = block.kind;
    }
    if (info.kind == CONCORD_MEMORY_DEVICE) info.device = 0;
    sdk::write_sized(info, out_info);
  }

 private:
  struct Block {
    int64_t bytes;
    concord_memory_kind kind;
  };

  void* take(int64_t bytes, concord_memory_kind kind) {
    sdk::check_bytes(bytes);
    if (bytes == 0) return nullptr;
    const std::lock_guard lock(mutex_);
    const int64_t free = machine_memory() - used_;
    void* const pointer = bytes <= free ? std::aligned_alloc(64, (static_cast<size_t>(bytes) + 63) / 64 * 64) : nullptr;
    if (pointer == nullptr) {
      sdk::fail(CONCORD_STATUS_OUT_OF_MEMORY, sdk::text("%lld bytes were asked for and %lld are free",
                                                        static_cast<long long>(bytes), static_cast<long long>(free)));
    }
    blocks_[reinterpret_cast<uintptr_t>(pointer)] = {bytes, kind};
    used_ += bytes;
    return pointer;
  }

  void drop(void* pointer, concord_memory_kind kind) {
    if (pointer == nullptr) return;
    const std::lock_guard lock(mutex_);
    const auto block = blocks_.find(reinterpret_cast<uintptr_t>(pointer));
    if (block == blocks_.end() || block->second.kind != kind) {
      sdk::invalid(sdk::text("%p is not memory of this kind, or was released before", pointer));
    }
    used_ -= block->second.bytes;
    blocks_.erase(block);
    std::free(pointer);
  }

  std::mutex mutex_;  // guards all below
  std::map<uintptr_t, Block> blocks_;
  int64_t used_ = 0;
};

// All work is done before its call returns, so streams and events only store whether timing was requested, which tiny
// does not support.
class Streams {
 public:
  concord_stream create(int32_t device, int32_t) {
    expect_device(device);
    return reinterpret_cast<concord_stream>(this);
  }
  void destroy(concord_stream stream) { sdk::check_not_null(stream, "stream"); }
  void synchronize(concord_stream) {}
  int32_t query(concord_stream) { return 1; }
  void wait_event(concord_stream, concord_event event) { sdk::check_not_null(event, "event"); }
  void priority_range(int32_t device, int32_t* out_least, int32_t* out_greatest) {
    expect_device(device);
    sdk::check_not_null(out_least, "out_least");
    sdk::check_not_null(out_greatest, "out_greatest");
    *out_least = *out_greatest = 0;
  }
};

class Events {
 public:
  concord_event create(int32_t device, uint32_t flags) {
    expect_device(device);
    sdk::check_event_flags(flags);
    return reinterpret_cast<concord_event>(this);
  }
  void destroy(concord_event event) { sdk::check_not_null(event, "event"); }
  void record(concord_event event, concord_stream) { sdk::check_not_null(event, "event"); }
  int32_t query(concord_event event) {
    sdk::check_not_null(event, "event");
    return 1;
  }
  void synchronize(concord_event event) { sdk::check_not_null(event, "event"); }
};

// One rank: every collective is a copy, and every reduction of one value is that value.
class Comm {
 public:
  int64_t unique_id_size() { return kIdBytes; }
  void unique_id_create(void* out_id, int64_t bytes) {
    sdk::check_unique_id(out_id, bytes, kIdBytes);
    if (getrandom(out_id, kIdBytes, 0) != kIdBytes) sdk::fail(CONCORD_STATUS_INTERNAL, "getrandom gives no bytes");
  }
  concord_comm init(int32_t device, int32_t world, int32_t rank, const void* id, int64_t id_bytes,
                    const concord_comm_config* config) {
    expect_device(device);
    sdk::check_init(world, rank, id, id_bytes, kIdBytes);
    sdk::read_comm_config(config);
    if (world != 1) {
      sdk::fail(CONCORD_STATUS_UNIMPLEMENTED, sdk::text("rank %d of %d; a tiny communicator has 1 rank", rank, world));
    }
    return reinterpret_cast<concord_comm>(this);
  }
  void destroy(concord_comm comm) { expect(comm); }
  concord_status async_error(concord_comm comm) {
    expect(comm);
    return CONCORD_STATUS_OK;
  }
  int32_t rank(concord_comm comm) {
    expect(comm);
    return 0;
  }
  int32_t size(concord_comm comm) {
    expect(comm);
    return 1;
  }
  int32_t supports(concord_comm_op operation, concord_dtype dtype, concord_reduce_op reduce) {
    sdk::check_comm_op(operation);
    return dtype != CONCORD_DTYPE_BOOL || reduce != CONCORD_REDUCE_AVG;
  }
  void all_reduce(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
                  concord_reduce_op reduce, concord_stream) {
    expect(comm);
    sdk::check_all_reduce(send, recv, count, dtype, reduce);
    copy_bytes(recv, send, sdk::element_bytes(count, dtype));
  }
  void reduce(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
              concord_reduce_op reduce, int32_t root, concord_stream) {
    expect(comm);
    sdk::check_reduce(send, recv, count, dtype, reduce, root, 0, 1);
    copy_bytes(recv, send, sdk::element_bytes(count, dtype));
  }
  void broadcast(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype, int32_t root,
                 concord_stream) {
    expect(comm);
    sdk::check_broadcast(send, recv, count, dtype, root, 0, 1);
    copy_bytes(recv, send, sdk::element_bytes(count, dtype));
  }
  void all_gather(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype, concord_stream) {
    expect(comm);
    sdk::check_all_gather(send, recv, count, dtype, 0, 1);
    copy_bytes(recv, send, sdk::element_bytes(count, dtype));
  }
  void reduce_scatter(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
                      concord_reduce_op reduce, concord_stream) {
    expect(comm);
    sdk::check_reduce_scatter(send, recv, count, dtype, reduce, 0, 1);
    copy_bytes(recv, send, sdk::element_bytes(count, dtype));
  }
  void all_to_all(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype, concord_stream) {
    expect(comm);
    sdk::check_all_to_all(send, recv, count, dtype, 1);
    copy_bytes(recv, send, sdk::element_bytes(count, dtype));
  }
  void all_to_all_v(concord_comm comm, const void* send, const int64_t* send_counts, const int64_t* send_offsets,
                    void* recv, const int64_t* recv_counts, const int64_t* recv_offsets, concord_dtype dtype,
                    concord_stream) {
    expect(comm);
    sdk::check_all_to_all_v(send, send_counts, send_offsets, recv, recv_counts, recv_offsets, dtype, 1);
    if (send_counts[0] != recv_counts[0]) {
      sdk::invalid(sdk::text("%lld elements are sent and %lld received", static_cast<long long>(send_counts[0]),
                             static_cast<long long>(recv_counts[0])));
    }
    const int64_t size = sdk::dtype_size(dtype);
    copy_bytes(static_cast<char*>(recv) + recv_offsets[0] * size,
               static_cast<const char*>(send) + send_offsets[0] * size, send_counts[0] * size);
  }
  void barrier(concord_comm comm, concord_stream) { expect(comm); }
  // The n-th send to oneself matches the n-th receive.
  void batch_p2p(concord_comm comm, const concord_p2p_item* items, int64_t count, concord_stream) {
    expect(comm);
    sdk::check_batch_p2p(items, count, 0, 1);
    std::vector<const concord_p2p_item*> sends, receives;
    for (const concord_p2p_item* item = items; item != items + count; ++item) {
      (item->kind == CONCORD_P2P_SEND ? sends : receives).push_back(item);
    }
    for (size_t i = 0; i < sends.size(); ++i) {
      if (sends[i]->count != receives[i]->count || sends[i]->dtype != receives[i]->dtype) {
        sdk::invalid("a send and the receive that it meets differ in count or dtype");
      }
    }
    for (size_t i = 0; i < sends.size(); ++i) {
      copy_bytes(receives[i]->buffer, sends[i]->buffer, sdk::element_bytes(sends[i]->count, sends[i]->dtype));
    }
  }

 private:
  static constexpr int64_t kIdBytes = 16;

  static void expect(concord_comm comm) { sdk::check_not_null(comm, "comm"); }
};

class Rng {
 public:
  void fill(const concord_rng_request* request, concord_stream) {
    const concord_rng_request known = sdk::read_rng_request(request);
    sdk::fill_random(known, 0, known.count, known.destination, 1);
  }
};

constexpr concord_capability kCapabilities[] = {
    {CONCORD_CAP_MEMORY_HOST_ACCESSIBLE, 1, nullptr},
    {CONCORD_CAP_STREAM_NULL, 1, nullptr},
    {CONCORD_CAP_STREAM_HOST_FUNCTIONS, 0, "streams run inline"},
    {CONCORD_CAP_EVENT_TIMING, 0, "there is no clock"},
    {CONCORD_CAP_COMM_DETERMINISTIC, 1, nullptr},
    {CONCORD_CAP_COMM_SHARED_DEVICE, 0, "a communicator has one rank"},
    {CONCORD_CAP_COMM_P2P_SELF, 1, nullptr},
};

class TinyPlugin : public sdk::Plugin {
 public:
  TinyPlugin() {
    auto core = sdk::new_table<concord_core_table>(this);
    core.name = "tiny";
    core.version = "1";
    core.vendor = "an example";
    core.label = "tiny";
    core.priority = -1;  // only on explicit request
    core.capabilities = kCapabilities;
    core.capability_count = std::size(kCapabilities);
    core.torch_device_type = "cpu";
    add(core);
    add(sdk::device_table(&devices_));
    add(sdk::memory_table(&memory_));
    add(sdk::stream_table(&streams_));
    add(sdk::event_table(&events_));
    add(sdk::comm_table(&comm_));
    add(sdk::rng_table(&rng_));
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
