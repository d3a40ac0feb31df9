#include "platform/layers/validate.h"

#include <cstdlib>

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

Validate::Validate(const loader::Tables& next, ValidateSettings settings) : LiveObjects(next) {
  if (!settings.report_leaks) return;
  static std::vector<Validate*>* const reporting = new std::vector<Validate*>();  // never destroyed: read at the end
  if (reporting->empty()) {
    std::atexit([] {
      for (Validate* layer : *reporting) {
        const std::string text = layer->leaks();
        if (!text.empty()) loader::log(CONCORD_LOG_WARN, layer->next().core.name, cat("still alive: ", text));
      }
    });
  }
  reporting->push_back(this);
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

concord_status Validate::launch_host(concord_stream stream, concord_host_function function, void* user) {
  sdk::check_host_function(function);
  auto call = std::make_unique<HostCall>(HostCall{function, user});
  const concord_status status = next_.stream.launch_host(next_.stream.self, stream, &run_host_call, call.get());
  if (status == CONCORD_STATUS_OK) call.release();  // NOLINT: run_host_call frees it
  return status;
}

}  // namespace concord::layers
