// A small complete plugin for tests of the host: host memory, inline execution, communicators of one rank. It does not
// check its arguments, so that the host must catch invalid ones. The constructor takes the differences between samples.
#pragma once

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "platform/sdk/dtypes.hpp"
#include "platform/sdk/plugin.hpp"

namespace concord::sample {

class Devices {
 public:
  explicit Devices(int32_t count) : count_(count) {}
  int32_t count() {
    if (count_ < 0) sdk::fail(CONCORD_STATUS_UNAVAILABLE, "the sample has no driver");
    return count_;
  }
  void info(int32_t, concord_device_info* out_info) {
    concord_device_info info{};
    sdk::write_string(info.name, "sample device");
    sdk::write_sized(info, out_info);
  }
  void set_current(int32_t device) {
    if (device < 0 || device >= count_) {
      sdk::invalid(sdk::text("device %d does not exist; there are %d", device, count_));
    }
    current() = device;
  }
  int32_t get_current() { return current(); }
  void synchronize(int32_t) {}

 private:
  static int32_t& current() {
    thread_local int32_t device = 0;
    return device;
  }
  int32_t count_;
};

class MemoryTable {
 public:
  void* allocate(int32_t, int64_t bytes) { return allocate_host(bytes); }
  void release(int32_t, void* pointer) { std::free(pointer); }
  void* allocate_host(int64_t bytes) {
    return bytes > 0 ? std::aligned_alloc(64, (static_cast<size_t>(bytes) + 63) / 64 * 64) : nullptr;
  }
  void release_host(void* pointer) { std::free(pointer); }
  void copy(void* destination, const void* source, int64_t bytes, concord_copy_kind) {
    std::memcpy(destination, source, static_cast<size_t>(bytes));
  }
  void copy_on_stream(void* destination, const void* source, int64_t bytes, concord_copy_kind kind, concord_stream) {
    copy(destination, source, bytes, kind);
  }
  void fill_on_stream(void* destination, int32_t value, int64_t bytes, concord_stream) {
    std::memset(destination, value, static_cast<size_t>(bytes));
  }
  void info(int32_t, int64_t* out_free, int64_t* out_total) { *out_free = *out_total = int64_t{1} << 30; }
  void describe_pointer(const void*, concord_pointer_info* out_info) {
    sdk::write_sized(concord_pointer_info{0, CONCORD_MEMORY_UNKNOWN, -1, 0}, out_info);
  }
};

struct StreamObject {
  int32_t device;
};
struct EventObject {
  std::chrono::steady_clock::time_point at;
};

class Streams {
 public:
  concord_stream create(int32_t device, int32_t) { return reinterpret_cast<concord_stream>(new StreamObject{device}); }
  void destroy(concord_stream stream) { delete reinterpret_cast<StreamObject*>(stream); }
  void synchronize(concord_stream) {}
  int32_t query(concord_stream) { return 1; }
  void wait_event(concord_stream, concord_event) {}
  void priority_range(int32_t, int32_t* out_least, int32_t* out_greatest) { *out_least = *out_greatest = 0; }
};

class Events {
 public:
  concord_event create(int32_t, uint32_t) { return reinterpret_cast<concord_event>(new EventObject{}); }
  void destroy(concord_event event) { delete reinterpret_cast<EventObject*>(event); }
  void record(concord_event event, concord_stream) {
    reinterpret_cast<EventObject*>(event)->at = std::chrono::steady_clock::now();
  }
  int32_t query(concord_event) { return 1; }
  void synchronize(concord_event) {}
  double elapsed(concord_event start, concord_event end) {
    return std::chrono::duration<double, std::milli>(reinterpret_cast<EventObject*>(end)->at -
                                                     reinterpret_cast<EventObject*>(start)->at)
        .count();
  }
};

class Comms {
 public:
  int64_t unique_id_size() { return 8; }
  void unique_id_create(void* out_id, int64_t bytes) { std::memset(out_id, 1, static_cast<size_t>(bytes)); }
  concord_comm init(int32_t, int32_t, int32_t, const void*, int64_t, const concord_comm_config*) {
    return reinterpret_cast<concord_comm>(new int32_t{1});
  }
  void destroy(concord_comm comm) { delete reinterpret_cast<int32_t*>(comm); }
  concord_status async_error(concord_comm) { return CONCORD_STATUS_OK; }
  int32_t rank(concord_comm) { return 0; }
  int32_t size(concord_comm) { return 1; }
  int32_t supports(concord_comm_op, concord_dtype, concord_reduce_op) { return 1; }
  void all_reduce(concord_comm, const void* send, void* recv, int64_t count, concord_dtype dtype, concord_reduce_op,
                  concord_stream) {
    move(send, recv, count, dtype);
  }
  void reduce(concord_comm, const void* send, void* recv, int64_t count, concord_dtype dtype, concord_reduce_op,
              int32_t, concord_stream) {
    move(send, recv, count, dtype);
  }
  void broadcast(concord_comm, const void* send, void* recv, int64_t count, concord_dtype dtype, int32_t,
                 concord_stream) {
    move(send, recv, count, dtype);
  }
  void all_gather(concord_comm, const void* send, void* recv, int64_t count, concord_dtype dtype, concord_stream) {
    move(send, recv, count, dtype);
  }
  void reduce_scatter(concord_comm, const void* send, void* recv, int64_t count, concord_dtype dtype, concord_reduce_op,
                      concord_stream) {
    move(send, recv, count, dtype);
  }
  void all_to_all(concord_comm, const void* send, void* recv, int64_t count, concord_dtype dtype, concord_stream) {
    move(send, recv, count, dtype);
  }
  void all_to_all_v(concord_comm, const void* send, const int64_t* send_counts, const int64_t*, void* recv,
                    const int64_t*, const int64_t*, concord_dtype dtype, concord_stream) {
    move(send, recv, send_counts[0], dtype);
  }
  void barrier(concord_comm, concord_stream) {}
  void batch_p2p(concord_comm, const concord_p2p_item*, int64_t, concord_stream) {}

 private:
  static void move(const void* send, void* recv, int64_t count, concord_dtype dtype) {
    if (send != recv) std::memcpy(recv, send, static_cast<size_t>(count * sdk::dtype_size(dtype)));
  }
};

class Rng {
 public:
  void fill(const concord_rng_request*, concord_stream) {}
};

struct Options {
  const char* name = "sample";
  int32_t priority = -1;
  int32_t devices = 1;  // negative: no driver
};

struct Backend {
  Options options;
  Devices devices{options.devices};
  MemoryTable memory{};
  Streams streams{};
  Events events{};
  Comms communicators{};
  Rng rng{};

  sdk::Description describe() const {
    return {
        .name = options.name,
        .vendor = "any",
        .version = "0.1 (sample)",
        .priority = options.priority,
        .capabilities = {{CONCORD_CAP_MEMORY_HOST_ACCESSIBLE, 1, nullptr},
                         {CONCORD_CAP_STREAM_NULL, 1, nullptr},
                         {CONCORD_CAP_EVENT_TIMING, 1, nullptr},
                         {CONCORD_CAP_COMM_SPLIT, 0, "a sample has one rank"}},
    };
  }
};

class Plugin : public sdk::StandardPlugin<Backend> {
 public:
  explicit Plugin(const Options& options = {}) : sdk::StandardPlugin<Backend>(options) {}
};

}  // namespace concord::sample
