#include "backends/cpu/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "backends/cpu/device.h"
#include "backends/cpu/machine.h"
#include "backends/cpu/stream.h"
#include "platform/sdk/checks.hpp"

namespace concord::cpu {
namespace {

constexpr int32_t kPinned = -1;
constexpr size_t kAlignment = 128;  // above the 64 that the contract asks for: a pair of cache lines
constexpr int64_t kHugePage = 2 << 20;
constexpr int64_t kHugeFrom = 2 * kHugePage;  // blocks that are worth huge pages: far fewer page faults on first use
constexpr int64_t kLookFrom = 64 << 20;       // blocks for which asking the system what is free is worth its 50 us

long long printable(int64_t number) { return static_cast<long long>(number); }

[[noreturn]] void out_of_memory(int32_t device, int64_t asked, int64_t free, int64_t total) {
  const std::string where = device == kPinned ? std::string("pinned host memory") : sdk::text("device %d", device);
  sdk::fail(CONCORD_STATUS_OUT_OF_MEMORY,
            sdk::text("%lld bytes were requested from %s, where %lld of %lld are free", printable(asked), where.c_str(),
                      printable(free), printable(total)));
}

void* obtain(int64_t bytes) {
  const bool huge = bytes >= kHugeFrom;
  const size_t alignment = huge ? kHugePage : kAlignment;
  const size_t rounded = (static_cast<size_t>(bytes) + alignment - 1) / alignment * alignment;
  void* pointer = std::aligned_alloc(alignment, rounded);
  if (pointer != nullptr && huge) madvise(pointer, rounded, MADV_HUGEPAGE);  // a wish: it works without, too
  return pointer;
}

}  // namespace

class Memory::Released {
 public:
  Released(Memory* memory, void* pointer, Block block) : memory_(memory), pointer_(pointer), block_(block) {}
  Released(Released&& other) noexcept
      : memory_(other.memory_), pointer_(std::exchange(other.pointer_, nullptr)), block_(other.block_) {}
  Released& operator=(Released&&) = delete;
  ~Released() {
    if (pointer_ == nullptr) return;
    std::free(pointer_);
    memory_->unreserve(block_.device, block_.bytes);
  }

 private:
  Memory* memory_;
  void* pointer_;
  Block block_;
};

Memory::Memory(int32_t device_count, int64_t total, const Devices& devices, Streams& streams)
    : total_(total), devices_(devices), streams_(streams), used_(static_cast<size_t>(device_count) + 1, 0) {}

void Memory::reserve(int32_t device, int64_t bytes) {
  const int64_t available = bytes >= kLookFrom ? available_memory() : INT64_MAX;
  const std::lock_guard lock(mutex_);
  const int64_t free = std::min(total_ - used(device), available);
  if (bytes > free) out_of_memory(device, bytes, free, total_);
  used(device) += bytes;
}

void Memory::unreserve(int32_t device, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  used(device) -= bytes;
}

void* Memory::take(int32_t device, int64_t bytes) {
  sdk::check_bytes(bytes);
  if (bytes == 0) return nullptr;
  reserve(device, bytes);
  void* pointer = obtain(bytes);
  if (pointer == nullptr) {
    unreserve(device, bytes);
    out_of_memory(device, bytes, available_memory(), total_);
  }
  const std::lock_guard lock(mutex_);
  blocks_.emplace(reinterpret_cast<uintptr_t>(pointer), Block{bytes, device});
  return pointer;
}

// Takes |pointer|, a block of |device|, out of the records.
Memory::Released Memory::drop(int32_t device, void* pointer) {
  if (pointer == nullptr) return Released(this, nullptr, {});
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == blocks_.end()) {
    sdk::invalid(
        sdk::text("%p is not a live block of this plugin: it was already released, or never allocated here", pointer));
  }
  const Block block = found->second;
  if (block.device != device) {
    const auto name = [](int32_t of) {
      return of == kPinned ? "pinned host memory" : sdk::text("memory of device %d", of);
    };
    sdk::invalid(
        sdk::text("%p is %s; it was released as %s", pointer, name(block.device).c_str(), name(device).c_str()));
  }
  blocks_.erase(found);
  return Released(this, pointer, block);
}

void* Memory::allocate(int32_t device, int64_t bytes) {
  devices_.check(device);
  return take(device, bytes);
}

void Memory::release(int32_t device, void* pointer) {
  devices_.check(device);
  drop(device, pointer);
}

void* Memory::allocate_on_stream(int32_t device, int64_t bytes, concord_stream stream) {
  devices_.check(device);
  streams_.check_device(stream, device);
  return take(device, bytes);
}

// The block is removed from the record immediately, so that a second release is an error; its memory is freed when the
// stream reaches this point.
void Memory::release_on_stream(int32_t device, void* pointer, concord_stream stream) {
  devices_.check(device);
  streams_.check_device(stream, device);
  if (pointer == nullptr) return;
  streams_.submit(stream, [block = drop(device, pointer)] {});
}

void* Memory::allocate_host(int64_t bytes) { return take(kPinned, bytes); }

void Memory::release_host(void* pointer) { drop(kPinned, pointer); }

void Memory::copy(void* destination, const void* source, int64_t bytes, concord_copy_kind kind) {
  copy_on_stream(destination, source, bytes, kind, nullptr);
}

void Memory::copy_on_stream(void* destination, const void* source, int64_t bytes, concord_copy_kind kind,
                            concord_stream stream) {
  sdk::check_copy(destination, source, bytes, kind);
  const auto size = static_cast<size_t>(bytes);
  streams_.submit(stream, [destination, source, size] {
    if (size != 0) std::memcpy(destination, source, size);
  });
}

void Memory::check_on_device(const void* pointer, int32_t device, const char* what) {
  concord_pointer_info info{};
  info.struct_size = sizeof info;
  describe_pointer(pointer, &info);
  if (info.kind == CONCORD_MEMORY_DEVICE && info.device != device) {
    sdk::invalid(sdk::text("%s %p is on device %d; device %d was given", what, pointer, info.device, device));
  }
}

void Memory::copy_peer_on_stream(void* destination, int32_t destination_device, const void* source,
                                 int32_t source_device, int64_t bytes, concord_stream stream) {
  devices_.check(destination_device);
  devices_.check(source_device);
  check_on_device(destination, destination_device, "destination");
  check_on_device(source, source_device, "source");
  const std::shared_ptr<Queue> queue = streams_.queue_of(stream);
  if (queue != nullptr && queue->device() != destination_device && queue->device() != source_device) {
    sdk::invalid(sdk::text("the stream belongs to device %d; a copy from device %d to %d needs a stream of one of them",
                           queue->device(), source_device, destination_device));
  }
  copy_on_stream(destination, source, bytes, CONCORD_COPY_DEVICE_TO_DEVICE, stream);
}

void Memory::fill_on_stream(void* destination, int32_t value, int64_t bytes, concord_stream stream) {
  sdk::check_fill(destination, bytes);
  const auto size = static_cast<size_t>(bytes);
  streams_.submit(stream, [destination, value, size] {
    if (size != 0) std::memset(destination, value & 0xff, size);
  });
}

void Memory::info(int32_t device, int64_t* out_free, int64_t* out_total) {
  devices_.check(device);
  sdk::check_not_null(out_free, "out_free");
  sdk::check_not_null(out_total, "out_total");
  const int64_t available = available_memory();
  const std::lock_guard lock(mutex_);
  *out_free = std::min(total_ - used(device), available);
  *out_total = total_;
}

void Memory::describe_pointer(const void* pointer, concord_pointer_info* out_info) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  concord_pointer_info info{};
  info.kind = CONCORD_MEMORY_UNKNOWN;
  info.device = -1;
  {
    const std::lock_guard lock(mutex_);
    const auto after = blocks_.upper_bound(address);
    if (after != blocks_.begin()) {
      const auto& [start, block] = *std::prev(after);
      if (address - start < static_cast<uintptr_t>(block.bytes)) {
        info.kind = block.device == kPinned ? CONCORD_MEMORY_PINNED_HOST : CONCORD_MEMORY_DEVICE;
        info.device = block.device;
      }
    }
  }
  sdk::write_sized(info, out_info);
}

}  // namespace concord::cpu
