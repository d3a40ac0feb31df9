// A whole plugin in one file: one device that is the host's memory, streams that run inline, communicators of one rank.
// It passes the conformance kit, with the argument checks of platform/sdk/checks.hpp.
#include <sys/random.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "platform/sdk/checks.hpp"
#include "platform/sdk/communicators.hpp"
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

// Keeps a record of every block, so that a pointer that is not one is refused.
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

// All work is done before its call returns, so streams and events have nothing to remember but whether a time was asked
// for, which tiny does not have.
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

struct OnlyRank {
  int32_t rank() const { return 0; }
  int32_t size() const { return 1; }
  concord_status error(std::string*) const { return CONCORD_STATUS_OK; }
};

// One rank: every collective is a copy, and every reduction of one value is that value.
class Communicators : public sdk::CommTable<Communicators> {
 public:
  static constexpr int64_t kUniqueIdBytes = 16;

  void create_id(void* out_id) {
    if (getrandom(out_id, kUniqueIdBytes, 0) != kUniqueIdBytes) {
      sdk::fail(CONCORD_STATUS_INTERNAL, "getrandom returned too few bytes");
    }
  }
  concord_comm join(int32_t device, int32_t world, int32_t rank, const void*, const sdk::CommConfig&) {
    expect_device(device);
    if (world != 1) {
      sdk::fail(CONCORD_STATUS_UNIMPLEMENTED, sdk::text("rank %d of %d; a tiny communicator has 1 rank", rank, world));
    }
    return reinterpret_cast<concord_comm>(&rank_);
  }
  void destroy(concord_comm comm) { find(comm); }
  OnlyRank& find(concord_comm comm, concord_stream = nullptr) {
    sdk::check_not_null(comm, "comm");
    return rank_;
  }
  bool can_reduce(concord_dtype dtype, concord_reduce_op reduce) {
    return dtype != CONCORD_DTYPE_BOOL || reduce != CONCORD_REDUCE_AVG;
  }

  void run(OnlyRank&, const sdk::Transfer& call, concord_stream) {
    copy_bytes(call.recv, call.send, sdk::element_bytes(call.count, call.dtype));
  }
  void run(OnlyRank&, const sdk::AllToAllV& call, concord_stream) {
    if (call.send_counts[0] != call.recv_counts[0]) {
      sdk::invalid(sdk::text("%lld elements are sent and %lld received", static_cast<long long>(call.send_counts[0]),
                             static_cast<long long>(call.recv_counts[0])));
    }
    const int64_t size = sdk::dtype_size(call.dtype);
    copy_bytes(static_cast<char*>(call.recv) + call.recv_offsets[0] * size,
               static_cast<const char*>(call.send) + call.send_offsets[0] * size, call.send_counts[0] * size);
  }
  void run(OnlyRank&, const sdk::Barrier&, concord_stream) {}
  // The n-th send to oneself meets the n-th receive.
  void run(OnlyRank&, const sdk::BatchP2p& call, concord_stream) {
    std::vector<const concord_p2p_item*> sends, receives;
    for (const concord_p2p_item& item : call.items) {
      (item.kind == CONCORD_P2P_SEND ? sends : receives).push_back(&item);
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
  OnlyRank rank_;
};

class Rng {
 public:
  void fill(const concord_rng_request* request, concord_stream) {
    const concord_rng_request known = sdk::read_rng_request(request);
    sdk::fill_random(known, 0, known.count, known.destination, 1);
  }
};

struct Tiny {
  Devices devices;
  Memory memory;
  Streams streams;
  Events events;
  Communicators communicators;
  Rng rng;

  sdk::Description describe() const {
    return {
        .name = "tiny",
        .vendor = "an example",
        .version = "1",
        .priority = -1,  // only when asked for
        .capabilities = {{CONCORD_CAP_MEMORY_HOST_ACCESSIBLE, 1, nullptr},
                         {CONCORD_CAP_STREAM_NULL, 1, nullptr},
                         {CONCORD_CAP_STREAM_HOST_FUNCTIONS, 0, "streams run inline"},
                         {CONCORD_CAP_EVENT_TIMING, 0, "there is no clock"},
                         {CONCORD_CAP_COMM_DETERMINISTIC, 1, nullptr},
                         {CONCORD_CAP_COMM_SHARED_DEVICE, 0, "a communicator has one rank"},
                         {CONCORD_CAP_COMM_P2P_SELF, 1, nullptr}},
    };
  }
};

}  // namespace

CONCORD_PLUGIN(Tiny)
