// The validate layer: refuses invalid calls with INVALID_ARGUMENT and a message before a plugin sees them.
//
//   arguments   the checks of platform/sdk/checks.hpp; results without a place to go; devices that do not exist
//   lifetime    handles and memory that were freed (and when, by which call) or never created; freed twice
//   memory      ranges that leave their allocation, host memory in place of device memory and vice versa,
//               memory released while queued work still uses it
//   devices     streams, events, communicators and buffers of different devices in one call
//   order       two threads in one communicator at a time; calls into the platform from a host function of a stream
//
// Streams and events that libtorch or others made are legal wherever the plugin has a libtorch side of its own
// (core.torch_libraries): there an unknown handle is accepted. Unknown memory is always accepted: it may be a tensor's.
// CONCORD_VALIDATE=leaks lists at the end of the process what is still alive. Threads: any.
#pragma once

#include <string_view>

#include "platform/base/thread_safety.hpp"
#include "platform/layers/interpose.h"
#include "platform/layers/live_objects.h"
#include "platform/loader/arguments.h"

namespace concord::layers {

struct ValidateSettings {
  bool report_leaks = false;
};

// Throws Error (INVALID_ARGUMENT) if CONCORD_VALIDATE is unknown.
ValidateSettings validate_settings();

class Validate : public LiveObjects {
 public:
  Validate(const loader::Tables& next, ValidateSettings settings);

  template <auto Member, class Next, class... Arguments>
  concord_status around(const Next& call_next, Arguments... arguments) {
    constexpr loader::Slot<Member> slot;
    check_not_in_host_function();
    loader::for_each_argument<Member>(
        [this](std::string_view name, const auto& value) { this->check_argument(name, value); }, arguments...);
    const Work work = inspect(slot, arguments...);
    const Turn turn = begin_work(work);
    const concord_status status = perform(slot, call_next, arguments...);
    if (status != CONCORD_STATUS_OK) return status;
    leave(slot, arguments...);
    note_uses(work, loader::Slot<Member>::kInfo.full_name);
    return status;
  }

 private:
  template <auto Member>
  using Slot = loader::Slot<Member>;

  // ---- checks by the type and the name of an argument
  void check_argument(std::string_view name, concord_stream stream);
  void check_argument(std::string_view name, concord_event event);
  void check_argument(std::string_view name, concord_comm comm);
  void check_argument(std::string_view name, int32_t value);
  void check_argument(std::string_view name, int64_t value);
  template <class Type>
  void check_argument(std::string_view name, Type* value) {
    if (name.starts_with("out_")) check_out(name, reinterpret_cast<const void*>(value));
  }
  void check_argument(std::string_view, uint32_t) {}
  static void check_out(std::string_view name, const void* pointer);
  static void check_not_in_host_function();

  // ---- checks by slot; they say what the call touches
  template <class AnySlot, class... Arguments>
  Work inspect(AnySlot, Arguments...) {
    return {};
  }
  Work inspect(Slot<&concord_memory_table::copy>, void* destination, const void* source, int64_t bytes,
               concord_copy_kind kind);
  Work inspect(Slot<&concord_memory_table::copy_on_stream>, void* destination, const void* source, int64_t bytes,
               concord_copy_kind kind, concord_stream stream);
  Work inspect(Slot<&concord_memory_table::copy_peer_on_stream>, void* destination, int32_t destination_device,
               const void* source, int32_t source_device, int64_t bytes, concord_stream stream);
  Work inspect(Slot<&concord_memory_table::fill_on_stream>, void* destination, int32_t value, int64_t bytes,
               concord_stream stream);
  Work inspect(Slot<&concord_memory_table::allocate_on_stream>, int32_t device, int64_t bytes, concord_stream stream,
               void** out_pointer);
  Work inspect(Slot<&concord_event_table::create>, int32_t device, uint32_t flags, concord_event* out_event);
  Work inspect(Slot<&concord_event_table::record>, concord_event event, concord_stream stream);
  Work inspect(Slot<&concord_event_table::elapsed>, concord_event start, concord_event end, double* out_milliseconds);
  Work inspect(Slot<&concord_rng_table::fill>, const concord_rng_request* request, concord_stream stream);
  Work inspect(Slot<&concord_comm_table::unique_id_create>, void* out_id, int64_t bytes);
  Work inspect(Slot<&concord_comm_table::init>, int32_t device, int32_t world, int32_t rank, const void* id,
               int64_t id_bytes, const concord_comm_config* config, concord_comm* out_comm);
  Work inspect(Slot<&concord_comm_table::split>, concord_comm parent, const int32_t* ranks, int32_t count,
               const concord_comm_config* config, concord_comm* out_comm);
  Work inspect(Slot<&concord_comm_table::supports>, concord_comm_op operation, concord_dtype dtype,
               concord_reduce_op reduce, int32_t* out_supported);
  Work inspect(Slot<&concord_comm_table::all_reduce>, concord_comm comm, const void* send, void* recv, int64_t count,
               concord_dtype dtype, concord_reduce_op reduce, concord_stream stream);
  Work inspect(Slot<&concord_comm_table::reduce>, concord_comm comm, const void* send, void* recv, int64_t count,
               concord_dtype dtype, concord_reduce_op reduce, int32_t root, concord_stream stream);
  Work inspect(Slot<&concord_comm_table::broadcast>, concord_comm comm, const void* send, void* recv, int64_t count,
               concord_dtype dtype, int32_t root, concord_stream stream);
  Work inspect(Slot<&concord_comm_table::all_gather>, concord_comm comm, const void* send, void* recv, int64_t count,
               concord_dtype dtype, concord_stream stream);
  Work inspect(Slot<&concord_comm_table::reduce_scatter>, concord_comm comm, const void* send, void* recv,
               int64_t count, concord_dtype dtype, concord_reduce_op reduce, concord_stream stream);
  Work inspect(Slot<&concord_comm_table::all_to_all>, concord_comm comm, const void* send, void* recv, int64_t count,
               concord_dtype dtype, concord_stream stream);
  Work inspect(Slot<&concord_comm_table::all_to_all_v>, concord_comm comm, const void* send, const int64_t* send_counts,
               const int64_t* send_offsets, void* recv, const int64_t* recv_counts, const int64_t* recv_offsets,
               concord_dtype dtype, concord_stream stream);
  Work inspect(Slot<&concord_comm_table::barrier>, concord_comm comm, concord_stream stream);
  Work inspect(Slot<&concord_comm_table::batch_p2p>, concord_comm comm, const concord_p2p_item* items, int64_t count,
               concord_stream stream);

  // ---- what a successful call has begun
  template <class AnySlot, class... Arguments>
  void leave(AnySlot, Arguments...) {}
  void leave(Slot<&concord_stream_table::create>, int32_t device, int32_t priority, concord_stream* out_stream);
  void leave(Slot<&concord_event_table::create>, int32_t device, uint32_t flags, concord_event* out_event);
  void leave(Slot<&concord_event_table::record>, concord_event event, concord_stream stream);
  void leave(Slot<&concord_comm_table::init>, int32_t device, int32_t world, int32_t rank, const void* id,
             int64_t id_bytes, const concord_comm_config* config, concord_comm* out_comm);
  void leave(Slot<&concord_comm_table::split>, concord_comm parent, const int32_t* ranks, int32_t count,
             const concord_comm_config* config, concord_comm* out_comm);
  void leave(Slot<&concord_memory_table::allocate>, int32_t device, int64_t bytes, void** out_pointer);
  void leave(Slot<&concord_memory_table::allocate_on_stream>, int32_t device, int64_t bytes, concord_stream stream,
             void** out_pointer);
  void leave(Slot<&concord_memory_table::allocate_host>, int64_t bytes, void** out_pointer);

  // ---- the call itself
  template <class AnySlot, class Next, class... Arguments>
  concord_status perform(AnySlot, const Next& call_next, Arguments...) {
    return call_next();
  }
  // The next three name a table, which end_around locks.
  template <class Next>
  concord_status perform(Slot<&concord_stream_table::destroy>, const Next& call_next,
                         concord_stream stream) CONCORD_NO_THREAD_SAFETY_ANALYSIS {
    return end_around(streams_, stream, call_next);
  }
  template <class Next>
  concord_status perform(Slot<&concord_event_table::destroy>, const Next& call_next,
                         concord_event event) CONCORD_NO_THREAD_SAFETY_ANALYSIS {
    return end_around(events_, event, call_next);
  }
  template <class Next>
  concord_status perform(Slot<&concord_comm_table::destroy>, const Next& call_next,
                         concord_comm comm) CONCORD_NO_THREAD_SAFETY_ANALYSIS {
    return end_around(comms_, comm, call_next);
  }
  template <class Next>
  concord_status perform(Slot<&concord_memory_table::info>, const Next& call_next, int32_t, int64_t*, int64_t*) {
    give_back_quarantine();
    return call_next();
  }
  template <class Next>
  concord_status perform(Slot<&concord_memory_table::allocate>, const Next& call_next, int32_t, int64_t, void**) {
    return allocate_with_quarantine(call_next);
  }
  template <class Next>
  concord_status perform(Slot<&concord_memory_table::allocate_host>, const Next& call_next, int64_t, void**) {
    return allocate_with_quarantine(call_next);
  }
  template <class Next>
  concord_status perform(Slot<&concord_memory_table::release>, const Next&, int32_t device, void* pointer) {
    return release(Allocation::Kind::kDevice, device, pointer);
  }
  template <class Next>
  concord_status perform(Slot<&concord_memory_table::release_host>, const Next&, void* pointer) {
    return release(Allocation::Kind::kHost, -1, pointer);
  }
  template <class Next>
  concord_status perform(Slot<&concord_memory_table::release_on_stream>, const Next& call_next, int32_t device,
                         void* pointer, concord_stream stream) {
    end_stream_ordered(device, pointer, stream);
    return call_next();
  }
  template <class Next>
  concord_status perform(Slot<&concord_stream_table::launch_host>, const Next&, concord_stream stream,
                         concord_host_function function, void* user) {
    return launch_host(stream, function, user);
  }
  concord_status launch_host(concord_stream stream, concord_host_function function, void* user);
};

}  // namespace concord::layers
