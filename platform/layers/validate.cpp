#include "platform/layers/validate.h"

#include <cstdlib>
#include <cstring>

#include "platform/loader/error.h"
#include "platform/loader/host.h"
#include "platform/loader/text.h"
#include "platform/sdk/checks.hpp"

namespace concord::layers {
namespace {

using loader::cat;

bool& in_host_function() {
  thread_local bool inside = false;
  return inside;
}

struct HostCall {
  concord_host_function function;
  void* user;
};

void run_host_call(void* user) {
  const std::unique_ptr<HostCall> call(static_cast<HostCall*>(user));
  in_host_function() = true;
  call->function(call->user);
  in_host_function() = false;
}

Range::Side source_side(concord_copy_kind kind) {
  const bool host = kind == CONCORD_COPY_HOST_TO_HOST || kind == CONCORD_COPY_HOST_TO_DEVICE;
  return host ? Range::Side::kHost : Range::Side::kDevice;
}

Range::Side destination_side(concord_copy_kind kind) {
  const bool host = kind == CONCORD_COPY_HOST_TO_HOST || kind == CONCORD_COPY_DEVICE_TO_HOST;
  return host ? Range::Side::kHost : Range::Side::kDevice;
}

std::vector<Range> copy_ranges(const void* destination, const void* source, int64_t bytes, concord_copy_kind kind) {
  sdk::check_copy(destination, source, bytes, kind);
  return {{destination, bytes, "destination", destination_side(kind)}, {source, bytes, "source", source_side(kind)}};
}

}  // namespace

ValidateSettings validate_settings() {
  const auto value = loader::setting("validate");
  if (!value) return {};
  if (*value == "leaks") return {true};
  throw Error(CONCORD_STATUS_INVALID_ARGUMENT,
              cat("CONCORD_VALIDATE is '", *value, "'; it must be leaks (report at exit what was not freed)"));
}

Validate::Validate(const loader::Tables& next, ValidateSettings settings)
    : next_(next),
      foreign_handles_(next.core.torch_libraries != nullptr),
      null_stream_(capability(CONCORD_CAP_STREAM_NULL) != 0) {
  if (!settings.report_leaks) return;
  static std::vector<Validate*>* const reporting = new std::vector<Validate*>();  // never destroyed: read at the end
  if (reporting->empty()) {
    std::atexit([] {
      for (Validate* layer : *reporting) {
        const std::string text = layer->leaks();
        if (!text.empty()) loader::log(CONCORD_LOG_WARN, layer->next_.core.name, cat("still alive: ", text));
      }
    });
  }
  reporting->push_back(this);
}

int64_t Validate::capability(const char* name) const {
  for (int64_t i = 0; i < next_.core.capability_count; ++i) {
    const concord_capability& known = next_.core.capabilities[i];
    if (std::strcmp(known.name, name) == 0) return known.value;
  }
  return 0;
}

std::string Validate::leaks() {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> parts;
  const auto count = [&](size_t live, const char* what) {
    if (live > 0) parts.push_back(cat(live, " ", what, live > 1 ? "s" : ""));
  };
  count(streams_.live(), "stream");
  count(events_.live(), "event");
  count(comms_.live(), "communicator");
  if (allocations_.live() > 0) {
    parts.push_back(cat(allocations_.live(), " allocations of ", allocations_.live_bytes(), " bytes"));
  }
  return loader::join(parts, ", ");
}

// -------------------------------------------------------------------------------------- by the type of an argument

void Validate::check_argument(std::string_view, concord_stream stream) {
  if (stream == nullptr) {
    if (!null_stream_) sdk::invalid("the stream is null, which this plugin does not support (capability stream.null)");
    return;
  }
  const std::lock_guard lock(mutex_);
  if (!foreign_handles_) streams_.need(stream);
}

void Validate::check_argument(std::string_view, concord_event event) {
  const std::lock_guard lock(mutex_);
  if (!foreign_handles_ || event == nullptr) events_.need(event);
}

void Validate::check_argument(std::string_view, concord_comm comm) {
  const std::lock_guard lock(mutex_);
  comms_.need(comm);
}

void Validate::check_argument(std::string_view name, int32_t value) {
  if (name != "peer" && name != "device" && !name.ends_with("_device")) return;
  const int32_t count = device_count();
  if (count > 0) sdk::check_device(value, count);
}

void Validate::check_argument(std::string_view name, int64_t value) {
  if (name == "bytes") sdk::check_bytes(value);
}

void Validate::check_out(std::string_view name, const void* pointer) {
  if (pointer == nullptr) sdk::invalid(cat(name, " is null; it receives the result"));
}

void Validate::check_not_in_host_function() {
  if (in_host_function()) {
    sdk::invalid("the call comes from a host function on a stream (launch_host), which must not call the platform");
  }
}

int32_t Validate::device_count() {
  int32_t count = 0;
  return next_.device.count(next_.device.self, &count) == CONCORD_STATUS_OK ? count : -1;
}

// ------------------------------------------------------------------------------------------------------ by slot

Validate::Work Validate::inspect(Slot<&concord_memory_table::copy>, void* destination, const void* source,
                                 int64_t bytes, concord_copy_kind kind) {
  return {copy_ranges(destination, source, bytes, kind)};
}

Validate::Work Validate::inspect(Slot<&concord_memory_table::copy_on_stream>, void* destination, const void* source,
                                 int64_t bytes, concord_copy_kind kind, concord_stream stream) {
  return {copy_ranges(destination, source, bytes, kind), true, stream};
}

Validate::Work Validate::inspect(Slot<&concord_memory_table::copy_peer_on_stream>, void* destination,
                                 int32_t destination_device, const void* source, int32_t source_device, int64_t bytes,
                                 concord_stream stream) {
  Work work{copy_ranges(destination, source, bytes, CONCORD_COPY_DEVICE_TO_DEVICE), true, stream};
  work.ranges[0].device = destination_device;
  work.ranges[1].device = source_device;
  const int32_t device = device_of(stream);
  if (device >= 0 && device != destination_device && device != source_device) {
    sdk::invalid(cat("the stream belongs to device ", device, ", the copy goes from device ", source_device, " to ",
                     destination_device));
  }
  return work;
}

Validate::Work Validate::inspect(Slot<&concord_memory_table::fill_on_stream>, void* destination, int32_t, int64_t bytes,
                                 concord_stream stream) {
  sdk::check_fill(destination, bytes);
  return {{{destination, bytes, "destination", Range::Side::kDevice, device_of(stream)}}, true, stream};
}

Validate::Work Validate::inspect(Slot<&concord_memory_table::allocate_on_stream>, int32_t device, int64_t,
                                 concord_stream stream, void**) {
  check_same_device(stream, device, "the memory");
  return {};
}

Validate::Work Validate::inspect(Slot<&concord_event_table::create>, int32_t, uint32_t flags, concord_event*) {
  sdk::check_event_flags(flags);
  return {};
}

Validate::Work Validate::inspect(Slot<&concord_event_table::record>, concord_event event, concord_stream stream) {
  int32_t device = -1;
  {
    const std::lock_guard lock(mutex_);
    if (const EventInfo* info = events_.find(event)) device = info->device;
  }
  if (device >= 0) check_same_device(stream, device, "the event");
  return {};
}

Validate::Work Validate::inspect(Slot<&concord_event_table::elapsed>, concord_event start, concord_event end, double*) {
  const std::lock_guard lock(mutex_);
  const std::pair<const char*, concord_event> both[] = {{"start", start}, {"end", end}};
  for (const auto& [which, event] : both) {
    const EventInfo* info = events_.find(event);
    if (info == nullptr) continue;
    if (!info->timing) {
      sdk::fail(CONCORD_STATUS_FAILED_PRECONDITION, cat(which, " was created without CONCORD_EVENT_TIMING"));
    }
    if (!info->recorded) sdk::fail(CONCORD_STATUS_FAILED_PRECONDITION, cat(which, " was never recorded"));
  }
  return {};
}

Validate::Work Validate::inspect(Slot<&concord_rng_table::fill>, const concord_rng_request* request,
                                 concord_stream stream) {
  const concord_rng_request known = sdk::read_rng_request(request);
  const int64_t bytes = sdk::element_bytes(known.count, known.dtype);
  return {{{known.destination, bytes, "destination", Range::Side::kDevice, device_of(stream)}}, true, stream};
}

// ----------------------------------------------------------------------------------------------- what has begun

void Validate::leave(Slot<&concord_stream_table::create>, int32_t device, int32_t, concord_stream* out_stream) {
  const std::lock_guard lock(mutex_);
  streams_.begin(*out_stream, {device});
}

void Validate::leave(Slot<&concord_event_table::create>, int32_t device, uint32_t flags, concord_event* out_event) {
  const std::lock_guard lock(mutex_);
  events_.begin(*out_event, {device, (flags & CONCORD_EVENT_TIMING) != 0, false});
}

void Validate::leave(Slot<&concord_event_table::record>, concord_event event, concord_stream) {
  const std::lock_guard lock(mutex_);
  if (EventInfo* info = events_.find(event)) info->recorded = true;
}

void Validate::leave(Slot<&concord_memory_table::allocate>, int32_t device, int64_t bytes, void** out_pointer) {
  add_allocation(Allocation::Kind::kDevice, device, *out_pointer, bytes);
}

void Validate::leave(Slot<&concord_memory_table::allocate_on_stream>, int32_t device, int64_t bytes, concord_stream,
                     void** out_pointer) {
  add_allocation(Allocation::Kind::kOnStream, device, *out_pointer, bytes);
}

void Validate::leave(Slot<&concord_memory_table::allocate_host>, int64_t bytes, void** out_pointer) {
  add_allocation(Allocation::Kind::kHost, -1, *out_pointer, bytes);
}

void Validate::add_allocation(Allocation::Kind kind, int32_t device, void* pointer, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  allocations_.add({kind, device, pointer, bytes, {}, {}, std::nullopt});
}

// ------------------------------------------------------------------------------------------------------ memory

concord_status Validate::release(Allocation::Kind kind, int32_t device, void* pointer) {
  std::vector<Allocation> evicted;
  if (pointer != nullptr) {  // null is fine
    const std::lock_guard lock(mutex_);
    Allocation& block = allocations_.need(pointer, kind, device);
    check_unused_locked(block);
    drop_uses_locked(block);
    evicted = allocations_.quarantine(block);
  }
  give_back(evicted);
  return CONCORD_STATUS_OK;
}

void Validate::end_stream_ordered(int32_t device, void* pointer, concord_stream stream) {
  check_same_device(stream, device, "the memory");
  if (pointer == nullptr) return;
  const std::lock_guard lock(mutex_);
  Allocation& block = allocations_.need(pointer, Allocation::Kind::kOnStream, device);
  drop_uses_locked(block);
  allocations_.forget(pointer);
}

bool Validate::give_back_quarantine() {
  std::vector<Allocation> blocks;
  {
    const std::lock_guard lock(mutex_);
    blocks = allocations_.empty_quarantine();
  }
  give_back(blocks);
  return !blocks.empty();
}

void Validate::give_back(const std::vector<Allocation>& blocks) {
  const concord_memory_table& memory = next_.memory;
  for (const Allocation& block : blocks) {
    const concord_status status = block.kind == Allocation::Kind::kHost
                                      ? memory.release_host(memory.self, block.pointer)
                                      : memory.release(memory.self, block.device, block.pointer);
    if (status != CONCORD_STATUS_OK) {
      loader::log(
          CONCORD_LOG_ERROR, next_.core.name,
          cat("releasing ", describe(block), " failed with ", status_name(status), ": ", loader::take_error_detail()));
    }
  }
}

// ---------------------------------------------------------------------------------------- work and what it uses

Validate::Turn Validate::begin_work(const Work& work) {
  Turn turn(nullptr, [](std::atomic<bool>* busy) { busy->store(false); });
  {
    const std::lock_guard lock(mutex_);
    for (const Range& range : work.ranges) allocations_.check(range);
  }
  if (work.comm_busy != nullptr) {
    if (work.comm_busy->exchange(true)) sdk::invalid("another thread is inside an operation of this communicator");
    turn.reset(work.comm_busy.get());
  }
  return turn;
}

void Validate::note_uses(const Work& work, const char* call) {
  if (!work.queued) return;
  const std::lock_guard lock(mutex_);
  for (const Range& range : work.ranges) {
    Allocation* block = range.bytes > 0 ? allocations_.find(range.pointer) : nullptr;
    if (block != nullptr && block->kind != Allocation::Kind::kOnStream) note_use_locked(*block, work.stream, call);
  }
}

// One event per stream and allocation: the newest record represents all work before it.
void Validate::note_use_locked(Allocation& block, concord_stream stream, const char* call) {
  const concord_event_table& events = next_.event;
  concord_event& event = block.uses[stream];
  if (event == nullptr) {
    const int32_t device = device_of_locked(stream);
    if (events.create(events.self, device >= 0 ? device : std::max(block.device, 0), 0, &event) != CONCORD_STATUS_OK) {
      block.uses.erase(stream);
      return;
    }
  }
  events.record(events.self, event, stream);
  block.users[stream] = call;
}

void Validate::check_unused_locked(Allocation& block) {
  const concord_event_table& events = next_.event;
  for (const auto& [stream, event] : block.uses) {
    int32_t done = 1;
    if (events.query(events.self, event, &done) != CONCORD_STATUS_OK || done != 0) continue;
    std::string where;
    loader::append_pointer(where, stream);
    sdk::invalid(cat(describe(block), " is released while ", block.users[stream], " queued on stream ", where,
                     " may still use it; wait for the stream or for an event after it first"));
  }
}

void Validate::drop_uses_locked(Allocation& block) {
  for (const auto& [stream, event] : block.uses) next_.event.destroy(next_.event.self, event);
  block.uses.clear();
  block.users.clear();
}

concord_status Validate::launch_host(concord_stream stream, concord_host_function function, void* user) {
  sdk::check_host_function(function);
  auto call = std::make_unique<HostCall>(HostCall{function, user});
  const concord_status status = next_.stream.launch_host(next_.stream.self, stream, &run_host_call, call.get());
  if (status == CONCORD_STATUS_OK) call.release();  // NOLINT: run_host_call frees it
  return status;
}

int32_t Validate::device_of_locked(concord_stream stream) {
  const StreamInfo* info = streams_.find(stream);
  return info != nullptr ? info->device : -1;
}

int32_t Validate::device_of(concord_stream stream) {
  const std::lock_guard lock(mutex_);
  return device_of_locked(stream);
}

void Validate::check_same_device(concord_stream stream, int32_t device, const char* whose) {
  const int32_t stream_device = device_of(stream);
  if (stream_device >= 0 && stream_device != device) {
    sdk::invalid(cat("the stream belongs to device ", stream_device, ", ", whose, " to device ", device));
  }
}

}  // namespace concord::layers
