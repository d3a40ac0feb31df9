#include "backends/ascend/sim/runtime/memory/memory.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "backends/ascend/sim/runtime/error.h"
#include "backends/ascend/sim/runtime/settings.h"

namespace concord::ascend::sim {
namespace {

constexpr size_t kHostAlignment = 4096;

const std::byte* bytes_of(const void* address) { return static_cast<const std::byte*>(address); }

// The entry of |map| (begin -> something with |bytes|) that holds |address|, or end.
template <class Map, class Size>
auto holding(Map& map, const std::byte* address, Size&& size_of) {
  auto after = map.upper_bound(address);
  if (after == map.begin()) return map.end();
  --after;
  return address < after->first + size_of(after->second) ? after : map.end();
}

}  // namespace

Physical::Physical(int32_t on_device, size_t size) : device(on_device), bytes(size) {
  Memory::instance().of_device(device).charge(static_cast<int64_t>(bytes));
  try {
    file = create_memory_file("sim-npu-physical", bytes);
  } catch (...) {
    Memory::instance().of_device(device).charge(-static_cast<int64_t>(bytes));
    throw;
  }
}

Physical::~Physical() { Memory::instance().of_device(device).charge(-static_cast<int64_t>(bytes)); }

Memory& Memory::instance() {
  static Memory& memory = *new Memory;  // never destroyed: used until the process ends
  return memory;
}

// Twice the memory in addresses: guards, quarantine and fragments take addresses but none of the total.
Memory::Memory() {
  const std::vector<int32_t> visible = visible_devices();
  const size_t total = settings().memory_bytes;
  device_span_ = round_up(2 * total, size_t{2} << 20);
  if (visible.empty()) return;
  all_ = reserve_twin(device_span_ * visible.size());
  for (size_t i = 0; i < visible.size(); ++i) {
    const Twin twin{all_.shown + i * device_span_, all_.hidden + i * device_span_, device_span_};
    devices_.push_back(std::make_unique<DeviceMemory>(static_cast<int32_t>(i), twin, total));
  }
}

DeviceMemory& Memory::of_device(int32_t device) {
  if (device < 0 || static_cast<size_t>(device) >= devices_.size()) {
    fail(abi::kRtInvalidDeviceId,
         text("device %d does not exist; there are %zu, numbered from 0", device, devices_.size()));
  }
  return *devices_[static_cast<size_t>(device)];
}

// ------------------------------------------------------------------------------------------------------- what is where

const Memory::Range* Memory::range_holding(const void* address) const {
  const auto found = holding(ranges_, bytes_of(address), [](const Range& range) { return range.twin.bytes; });
  return found == ranges_.end() ? nullptr : &found->second;
}

std::byte* Memory::translate(const void* address) const {
  if (all_.contains(address)) return all_.translate(address);
  const std::shared_lock lock(mutex_);
  const Range* range = range_holding(address);
  return range != nullptr ? range->twin.translate(address) : static_cast<std::byte*>(const_cast<void*>(address));
}

int32_t Memory::device_holding(const void* address) const {
  return static_cast<int32_t>(static_cast<size_t>(bytes_of(address) - all_.shown) / device_span_);
}

Location Memory::locate(const void* address) const {
  if (all_.contains(address)) return {Place::kDevice, device_holding(address)};
  const std::shared_lock lock(mutex_);
  if (const Range* range = range_holding(address)) {
    const auto found = holding(range->mapped, bytes_of(address), [](const Mapping& mapping) { return mapping.bytes; });
    return {Place::kDevice, found == range->mapped.end() ? -1 : found->second.device};
  }
  const auto pinned = holding(pinned_, bytes_of(address), [](const Pinned& block) { return block.bytes; });
  return {pinned == pinned_.end() ? Place::kPageableHost : Place::kPinnedHost, -1};
}

std::string Memory::complaint(const void* address, size_t bytes) const {
  if (all_.contains(address)) {
    return devices_[static_cast<size_t>(device_holding(address))]->complaint(address, bytes);
  }
  const std::shared_lock lock(mutex_);
  const Range* range = range_holding(address);
  return range == nullptr ? text("%p is not a device address", address) : complaint_in(*range, address, bytes);
}

// The bytes may lie in several mappings, as long as these are side by side.
std::string Memory::complaint_in(const Range& range, const void* address, size_t bytes) {
  const std::byte* at = bytes_of(address);
  const std::byte* const end = at + bytes;
  while (at < end) {
    const auto found = holding(range.mapped, at, [](const Mapping& mapping) { return mapping.bytes; });
    if (found == range.mapped.end()) {
      return text("%zu bytes at %p: nothing is mapped at %p in the reserved range", bytes, address,
                  static_cast<const void*>(at));
    }
    at = found->first + found->second.bytes;
  }
  return {};
}

void Memory::release(void* address) {
  if (!all_.contains(address)) {
    const Place place = locate(address).place;
    fail(abi::kRtParamInvalid, text("%p was not allocated by aclrtMalloc%s", address,
                                    place == Place::kPinnedHost ? "; it is pinned host memory, for aclrtFreeHost"
                                    : place == Place::kDevice   ? "; it is in a reserved range"
                                                                : "; it is not a device address"));
  }
  devices_[static_cast<size_t>(device_holding(address))]->release(address);
}

// ----------------------------------------------------------------------------------------------------- reserved ranges

void* Memory::reserve(size_t bytes) {
  const Twin twin = reserve_twin(round_up(bytes, page_bytes()));
  const std::lock_guard lock(mutex_);
  ranges_.emplace(twin.shown, Range{twin, {}});
  return twin.shown;
}

void Memory::unreserve(void* address) {
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(bytes_of(address));
  if (found == ranges_.end()) fail(abi::kRtParamInvalid, text("%p is not the beginning of a reserved range", address));
  if (!found->second.mapped.empty()) {
    fail(abi::kRtParamInvalid, text("the range at %p still has memory mapped in it; unmap that first", address));
  }
  release_twin(found->second.twin);
  ranges_.erase(found);
}

void Memory::map(void* address, size_t bytes, size_t offset, std::shared_ptr<Physical> physical) {
  const std::lock_guard lock(mutex_);
  const auto range = holding(ranges_, bytes_of(address), [](const Range& r) { return r.twin.bytes; });
  if (range == ranges_.end()) fail(abi::kRtParamInvalid, text("%p is not in a reserved range", address));
  const Twin& twin = range->second.twin;
  const size_t at = static_cast<size_t>(bytes_of(address) - twin.shown);
  if (bytes == 0 || bytes % page_bytes() != 0 || at % page_bytes() != 0 || bytes > twin.bytes - at) {
    fail(abi::kRtParamInvalid,
         text("%zu bytes at %p are not whole pages of the reserved range of %zu bytes", bytes, address, twin.bytes));
  }
  if (offset + bytes > physical->bytes) {
    fail(abi::kRtParamInvalid,
         text("%zu bytes from offset %zu exceed the %zu bytes of physical memory", bytes, offset, physical->bytes));
  }
  const auto next = range->second.mapped.lower_bound(bytes_of(address));
  const bool taken = (next != range->second.mapped.end() && next->first < bytes_of(address) + bytes) ||
                     complaint_in(range->second, address, 1).empty();
  if (taken) fail(abi::kRtParamInvalid, text("memory is already mapped at %p", address));
  map_hidden(twin.hidden + at, bytes, physical->file.get(), offset);
  if (!std::exchange(physical->filled, true)) poison(twin.hidden + at, bytes);
  const int32_t device = physical->device;
  range->second.mapped.emplace(bytes_of(address), Mapping{bytes, device, std::move(physical)});
}

void Memory::unmap(void* address) {
  const std::lock_guard lock(mutex_);
  const auto range = holding(ranges_, bytes_of(address), [](const Range& r) { return r.twin.bytes; });
  if (range == ranges_.end()) fail(abi::kRtParamInvalid, text("%p is not in a reserved range", address));
  const auto found = range->second.mapped.find(bytes_of(address));
  if (found == range->second.mapped.end()) fail(abi::kRtParamInvalid, text("nothing is mapped at %p", address));
  unmap_hidden(range->second.twin.translate(address), found->second.bytes);
  range->second.mapped.erase(found);
}

void* Memory::import(int32_t device, int file, size_t offset, size_t bytes) {
  const size_t lead = offset % page_bytes();
  const size_t span = round_up(lead + bytes, page_bytes());
  Twin twin = reserve_twin(span);
  map_hidden(twin.hidden, span, file, offset - lead);
  const std::lock_guard lock(mutex_);
  Range range{twin, {}};
  range.mapped.emplace(twin.shown + lead, Mapping{bytes, device, nullptr});
  ranges_.emplace(twin.shown, std::move(range));
  return twin.shown + lead;
}

// --------------------------------------------------------------------------------------------------------- host memory

void* Memory::allocate_pinned(size_t bytes) {
  void* address = std::aligned_alloc(kHostAlignment, round_up(bytes, kHostAlignment));
  if (address == nullptr) throw std::bad_alloc();
  const std::lock_guard lock(mutex_);
  pinned_.emplace(bytes_of(address), Pinned{bytes, true});
  return address;
}

void Memory::release_pinned(void* address) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = pinned_.find(bytes_of(address));
    if (found == pinned_.end() || !found->second.ours) {
      fail(abi::kRtParamInvalid, text("%p was not allocated by aclrtMallocHost, or was freed", address));
    }
    pinned_.erase(found);
  }
  std::free(address);
}

void Memory::register_pinned(void* address, size_t bytes) {
  if (locate(address).place != Place::kPageableHost) {
    fail(abi::kRtParamInvalid, text("%p is already pinned, or a device address", address));
  }
  const std::lock_guard lock(mutex_);
  pinned_.emplace(bytes_of(address), Pinned{bytes, false});
}

void Memory::unregister_pinned(void* address) {
  const std::lock_guard lock(mutex_);
  const auto found = pinned_.find(bytes_of(address));
  if (found == pinned_.end() || found->second.ours) fail(abi::kRtParamInvalid, text("%p is not registered", address));
  pinned_.erase(found);
}

}  // namespace concord::ascend::sim
