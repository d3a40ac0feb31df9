#include "backends/ascend/sim/runtime/memory/device_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "backends/ascend/sim/runtime/error.h"
#include "backends/ascend/sim/runtime/settings.h"

namespace concord::ascend::sim {
namespace {

constexpr int kPoison = 0xff;
constexpr int kGuard = 0xa5;
constexpr size_t kQuarantineBytes = size_t{32} << 20;
constexpr size_t kKeptBytes = size_t{16} << 20;  // freed ranges up to this size keep their pages: they come again

}  // namespace

void poison(std::byte* hidden, size_t bytes) {
  std::memset(hidden, kPoison, std::min<size_t>(bytes, settings().poison_bytes));
}

DeviceMemory::DeviceMemory(int32_t device, const Twin& twin, size_t total_bytes)
    : device_(device), twin_(twin), total_(total_bytes), file_(create_memory_file("sim-npu", twin.bytes)) {
  map_hidden(twin_.hidden, twin_.bytes, file_.get(), 0);
  free_.emplace(0, twin_.bytes);
}

void* DeviceMemory::allocate(size_t bytes) {
  const std::lock_guard lock(mutex_);
  const size_t rounded = round_up(bytes, kAllocationAlignment);
  if (rounded < bytes || rounded > total_ - used_) {
    fail(abi::kRtMemoryAllocation, text("%zu bytes are too much for device %d: %zu of its %zu bytes are free", bytes,
                                        device_, total_ - used_, total_));
  }
  const Block block{bytes, rounded + kGuardBytes};
  const size_t offset = take_span(block.span);
  used_ += rounded;
  live_.emplace(offset, block);
  fill(offset, bytes);
  std::memset(twin_.hidden + offset + bytes, kGuard, block.span - bytes);
  return twin_.shown + offset;
}

// First fit. If nothing fits, freed ranges leave the quarantine.
size_t DeviceMemory::take_span(size_t span) {
  for (const bool last_try : {false, true}) {
    const auto found =
        std::find_if(free_.begin(), free_.end(), [&](const auto& range) { return range.second >= span; });
    if (found != free_.end()) {
      const auto [offset, length] = *found;
      free_.erase(found);
      if (length > span) free_.emplace(offset + span, length - span);
      return offset;
    }
    if (!last_try) shrink_quarantine(0);
  }
  fail(abi::kRtMemoryAllocation,
       text("device %d has no range of %zu addresses left: its memory is in too many pieces", device_, span));
}

void DeviceMemory::give_back_span(size_t offset, size_t span) {
  auto [range, added] = free_.emplace(offset, span);
  const auto next = std::next(range);
  if (next != free_.end() && range->first + range->second == next->first) {
    range->second += next->second;
    free_.erase(next);
  }
  if (range == free_.begin()) return;
  const auto previous = std::prev(range);
  if (previous->first + previous->second != range->first) return;
  previous->second += range->second;
  free_.erase(range);
}

void DeviceMemory::shrink_quarantine(size_t at_most) {
  while (quarantined_ > at_most) {
    const auto [offset, block] = quarantine_.front();
    quarantine_.pop_front();
    quarantined_ -= block.span;
    if (block.span > kKeptBytes) return_pages(offset, block.span);
    give_back_span(offset, block.span);
  }
}

// Whole pages go back to the host; what is left of them at the edges keeps its poison.
void DeviceMemory::return_pages(size_t offset, size_t span) {
  const size_t begin = round_up(offset, page_bytes());
  const size_t end = (offset + span) / page_bytes() * page_bytes();
  if (end > begin) ::madvise(twin_.hidden + begin, end - begin, MADV_REMOVE);
}

void DeviceMemory::fill(size_t offset, size_t bytes) { poison(twin_.hidden + offset, bytes); }

bool DeviceMemory::guard_is_whole(size_t offset, const Block& block) const {
  const std::byte* guard = twin_.hidden + offset + block.bytes;
  return std::all_of(guard, guard + (block.span - block.bytes), [](std::byte b) { return b == std::byte{kGuard}; });
}

void DeviceMemory::retire(Blocks::iterator found) {
  const auto [offset, block] = *found;
  used_ -= block.span - kGuardBytes;
  live_.erase(found);
  fill(offset, block.bytes);
  quarantine_.emplace_back(offset, block);
  quarantined_ += block.span;
  shrink_quarantine(kQuarantineBytes);
}

void DeviceMemory::release(void* address) {
  const std::string wrong = complaint(address, 1);
  if (!wrong.empty()) fail(abi::kRtParamInvalid, wrong);
  const std::lock_guard lock(mutex_);
  const auto offset = static_cast<size_t>(static_cast<std::byte*>(address) - twin_.shown);
  const auto found = live_.find(offset);
  if (found == live_.end()) {
    fail(abi::kRtParamInvalid, text("%p is inside an allocation of device %d but not its beginning", address, device_));
  }
  const Block block = found->second;
  const bool whole = guard_is_whole(offset, block);
  retire(found);
  if (!whole) {
    fail(abi::kRtDeviceMemError, text("something wrote past the end of the %zu bytes at %p on device %d; the memory "
                                      "is freed",
                                      block.bytes, address, device_));
  }
}

void DeviceMemory::release_all() {
  const std::lock_guard lock(mutex_);
  while (!live_.empty()) retire(live_.begin());
}

void DeviceMemory::charge(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes > 0 && static_cast<size_t>(bytes) > total_ - used_) {
    fail(abi::kRtMemoryAllocation, text("%lld bytes are too much for device %d: %zu of its %zu bytes are free",
                                        static_cast<long long>(bytes), device_, total_ - used_, total_));
  }
  used_ += static_cast<size_t>(bytes);
}

DeviceMemory::Blocks::const_iterator DeviceMemory::holding(size_t offset) const {
  auto after = live_.upper_bound(offset);
  if (after == live_.begin()) return live_.end();
  const auto found = std::prev(after);
  return offset < found->first + found->second.bytes ? found : live_.end();
}

std::string DeviceMemory::complaint(const void* address, size_t bytes) const {
  const std::lock_guard lock(mutex_);
  const auto offset = static_cast<size_t>(static_cast<const std::byte*>(address) - twin_.shown);
  const auto found = holding(offset);
  if (found != live_.end()) {
    const size_t left = found->first + found->second.bytes - offset;
    if (bytes <= left) return {};
    return text("%zu bytes at %p are more than the %zu that are left of the allocation of %zu bytes there (device %d)",
                bytes, address, left, found->second.bytes, device_);
  }
  for (const auto& [begin, block] : quarantine_) {
    if (offset >= begin && offset < begin + block.bytes) {
      return text("%p on device %d was freed (%zu bytes, of which it is number %zu)", address, device_, block.bytes,
                  offset - begin);
    }
  }
  return text("%p is an address of device %d, but nothing is allocated there", address, device_);
}

bool DeviceMemory::find(const void* address, size_t* out_file_offset, size_t* out_bytes) const {
  const std::lock_guard lock(mutex_);
  const auto found = holding(static_cast<size_t>(static_cast<const std::byte*>(address) - twin_.shown));
  if (found == live_.end()) return false;
  *out_file_offset = found->first;
  *out_bytes = found->second.bytes;
  return true;
}

size_t DeviceMemory::used_bytes() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

}  // namespace concord::ascend::sim
