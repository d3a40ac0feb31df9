#include "platform/layers/live_objects.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "platform/loader/error.h"
#include "platform/loader/host.h"
#include "platform/loader/text.h"
#include "platform/sdk/failure.hpp"

namespace concord::layers {

using loader::cat;

LiveObjects::LiveObjects(const loader::Tables& next)
    : next_(next),
      foreign_handles_(next.core.torch_libraries != nullptr),
      null_stream_(capability(CONCORD_CAP_STREAM_NULL) != 0) {}

int64_t LiveObjects::capability(const char* name) const {
  for (int64_t i = 0; i < next_.core.capability_count; ++i) {
    const concord_capability& known = next_.core.capabilities[i];
    if (std::strcmp(known.name, name) == 0) return known.value;
  }
  return 0;
}

std::string LiveObjects::leaks() {
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

int32_t LiveObjects::device_count() {
  int32_t count = 0;
  return next_.device.count(next_.device.self, &count) == CONCORD_STATUS_OK ? count : -1;
}

void LiveObjects::add_allocation(Allocation::Kind kind, int32_t device, void* pointer, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  allocations_.add({kind, device, pointer, bytes, {}, {}, std::nullopt});
}

// ------------------------------------------------------------------------------------------------------ memory

concord_status LiveObjects::release(Allocation::Kind kind, int32_t device, void* pointer) {
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

void LiveObjects::end_stream_ordered(int32_t device, void* pointer, concord_stream stream) {
  check_same_device(stream, device, "the memory");
  if (pointer == nullptr) return;
  const std::lock_guard lock(mutex_);
  Allocation& block = allocations_.need(pointer, Allocation::Kind::kOnStream, device);
  drop_uses_locked(block);
  allocations_.forget(pointer);
}

bool LiveObjects::give_back_quarantine() {
  std::vector<Allocation> blocks;
  {
    const std::lock_guard lock(mutex_);
    blocks = allocations_.empty_quarantine();
  }
  give_back(blocks);
  return !blocks.empty();
}

void LiveObjects::give_back(const std::vector<Allocation>& blocks) {
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

LiveObjects::Turn LiveObjects::begin_work(const Work& work) {
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

void LiveObjects::note_uses(const Work& work, const char* call) {
  if (!work.queued) return;
  const std::lock_guard lock(mutex_);
  for (const Range& range : work.ranges) {
    Allocation* block = range.bytes > 0 ? allocations_.find(range.pointer) : nullptr;
    if (block != nullptr && block->kind != Allocation::Kind::kOnStream) note_use_locked(*block, work.stream, call);
  }
}

// One event per stream and allocation: the newest record represents all work before it.
void LiveObjects::note_use_locked(Allocation& block, concord_stream stream, const char* call) {
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

void LiveObjects::check_unused_locked(Allocation& block) {
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

void LiveObjects::drop_uses_locked(Allocation& block) {
  for (const auto& [stream, event] : block.uses) next_.event.destroy(next_.event.self, event);
  block.uses.clear();
  block.users.clear();
}

int32_t LiveObjects::device_of_locked(concord_stream stream) {
  const StreamInfo* info = streams_.find(stream);
  return info != nullptr ? info->device : -1;
}

int32_t LiveObjects::device_of(concord_stream stream) {
  const std::lock_guard lock(mutex_);
  return device_of_locked(stream);
}

void LiveObjects::check_same_device(concord_stream stream, int32_t device, const char* whose) {
  const int32_t stream_device = device_of(stream);
  if (stream_device >= 0 && stream_device != device) {
    sdk::invalid(cat("the stream belongs to device ", stream_device, ", ", whose, " to device ", device));
  }
}

LiveObjects::CommInfo LiveObjects::comm_info(concord_comm comm) {
  const std::lock_guard lock(mutex_);
  return comms_.need(comm);
}

// Buffers of an operation are device memory of the communicator's device, and so is its stream.
LiveObjects::Work LiveObjects::comm_work(const CommInfo& info, concord_stream stream, std::vector<Range> ranges) {
  check_same_device(stream, info.device, "the communicator");
  for (Range& range : ranges) {
    range.side = Range::Side::kDevice;
    range.device = info.device;
  }
  return {std::move(ranges), true, stream, info.busy};
}

}  // namespace concord::layers
