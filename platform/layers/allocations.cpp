#include "platform/layers/allocations.h"

#include <utility>

namespace concord::layers {
namespace {

using loader::cat;

uintptr_t address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

std::string pointer_text(const void* pointer) {
  std::string text;
  loader::append_pointer(text, pointer);
  return text;
}

const char* maker(Allocation::Kind kind) {
  switch (kind) {
    case Allocation::Kind::kDevice: return "allocate";
    case Allocation::Kind::kOnStream: return "allocate_on_stream";
    case Allocation::Kind::kHost: return "allocate_host";
  }
  return "?";
}

}  // namespace

std::string describe(const Allocation& allocation) {
  const std::string where = allocation.kind == Allocation::Kind::kHost ? std::string("pinned host memory")
                                                                       : cat("memory of device ", allocation.device);
  return cat(allocation.bytes, " bytes of ", where, " at ", pointer_text(allocation.pointer));
}

void Allocations::add(Allocation allocation) {
  const uintptr_t begin = address(allocation.pointer);
  if (begin != 0) blocks_.insert_or_assign(begin, std::move(allocation));
}

Allocation* Allocations::find(const void* pointer) {
  auto after = blocks_.upper_bound(address(pointer));
  if (after == blocks_.begin()) return nullptr;
  Allocation& block = std::prev(after)->second;
  return address(pointer) - address(block.pointer) < static_cast<uintptr_t>(block.bytes) ? &block : nullptr;
}

void Allocations::check(const Range& range) {
  if (range.bytes <= 0) return;
  const Allocation* block = find(range.pointer);
  if (block == nullptr) return;  // someone else's memory, for example a tensor's: nothing is known about it
  if (block->released) {
    sdk::invalid(cat(range.what, " (", pointer_text(range.pointer), ") is in ", describe(*block),
                     ", which was released ", describe(*block->released)));
  }
  const uintptr_t room = address(block->pointer) + static_cast<uintptr_t>(block->bytes) - address(range.pointer);
  if (static_cast<uintptr_t>(range.bytes) > room) {
    sdk::invalid(cat(range.what, " (", pointer_text(range.pointer), ", ", range.bytes, " bytes) extends ",
                     static_cast<uintptr_t>(range.bytes) - room, " bytes past the end of ", describe(*block)));
  }
  const bool host = block->kind == Allocation::Kind::kHost;
  if ((range.side == Range::Side::kHost && !host) || (range.side == Range::Side::kDevice && host)) {
    sdk::invalid(
        cat(range.what, " must be ", host ? "device" : "host", " memory here, but it is in ", describe(*block)));
  }
  if (range.device >= 0 && !host && block->device != range.device) {
    sdk::invalid(cat(range.what, " must be on device ", range.device, ", but it is in ", describe(*block)));
  }
}

Allocation& Allocations::need(const void* pointer, Allocation::Kind kind, int32_t device) {
  Allocation* block = find(pointer);
  if (block == nullptr) sdk::invalid(cat("the pointer ", pointer_text(pointer), " was not returned by ", maker(kind)));
  if (block->released) {
    sdk::invalid(cat(describe(*block), " was already released ", describe(*block->released)));
  }
  if (block->pointer != pointer) {
    sdk::invalid(cat("the pointer ", pointer_text(pointer), " is not the beginning of ", describe(*block)));
  }
  if (block->kind != kind) {
    sdk::invalid(cat(describe(*block), " came from ", maker(block->kind), " and cannot be released as if it came from ",
                     maker(kind)));
  }
  if (block->device != device) sdk::invalid(cat(describe(*block), " cannot be released on device ", device));
  return *block;
}

void Allocations::forget(const void* pointer) { blocks_.erase(address(pointer)); }

std::vector<Allocation> Allocations::quarantine(Allocation& allocation) {
  allocation.released = Ending{};
  quarantine_.push_back(address(allocation.pointer));
  quarantined_bytes_ += allocation.bytes;
  std::vector<Allocation> evicted;
  while (quarantined_bytes_ > kQuarantineBytes || quarantine_.size() > kQuarantineBlocks) {
    const auto oldest = blocks_.find(quarantine_.front());
    quarantine_.pop_front();
    quarantined_bytes_ -= oldest->second.bytes;
    evicted.push_back(std::move(oldest->second));
    blocks_.erase(oldest);
  }
  return evicted;
}

std::vector<Allocation> Allocations::empty_quarantine() {
  std::vector<Allocation> evicted;
  for (const uintptr_t begin : quarantine_) {
    const auto block = blocks_.find(begin);
    evicted.push_back(std::move(block->second));
    blocks_.erase(block);
  }
  quarantine_.clear();
  quarantined_bytes_ = 0;
  return evicted;
}

int64_t Allocations::live_bytes() const {
  int64_t bytes = 0;
  for (const auto& [begin, block] : blocks_) bytes += block.released ? 0 : block.bytes;
  return bytes;
}

}  // namespace concord::layers
