// The memory of one device: its allocations, and the detection of misuse.
//
// An allocation is filled with 0xff (NaN in every float type, -1 in integers) before it is returned and again when it
// is freed, so that memory that is read before it is written, or after it is freed, cannot be taken for a result. Guard
// bytes after every allocation are checked when it is freed. A freed range stays in quarantine for a while: its address
// is not reused immediately, and using it is a separate error.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>

#include "backends/ascend/sim/runtime/memory/address_space.h"
#include "platform/base/thread_safety.hpp"

namespace concord::ascend::sim {

inline constexpr size_t kAllocationAlignment = 512;
inline constexpr size_t kGuardBytes = 512;

// Fills the |bytes| at |hidden| with 0xff; CONCORD_SIM_NPU_POISON is the maximum number of bytes.
void poison(std::byte* hidden, size_t bytes);

class DeviceMemory {
 public:
  // |twin| is larger than |total_bytes|, the memory of the device: guards and quarantine take addresses only.
  DeviceMemory(int32_t device, const Twin& twin, size_t total_bytes);

  // Throws 207001 if the device has less left.
  void* allocate(size_t bytes);
  // Throws 107000 if |address| is not the start of a live allocation, and 507053, after freeing it, if its guard was
  // overwritten.
  void release(void* address);
  // Frees all allocations, like a reset of the device.
  void release_all();

  // Takes |bytes| from the total without an address; negative values return them. Throws 207001.
  void charge(int64_t bytes);

  // Returns "" if the |bytes| at |address| lie in one live allocation; otherwise an error message.
  std::string complaint(const void* address, size_t bytes) const;

  // Finds the live allocation that contains |address|: its offset in the memory file, and its size. Returns false if
  // there is none.
  bool find(const void* address, size_t* out_file_offset, size_t* out_bytes) const;

  const Twin& twin() const { return twin_; }
  int file() const { return file_.get(); }
  size_t total_bytes() const { return total_; }
  size_t used_bytes() const;

 private:
  struct Block {
    size_t bytes = 0;  // requested
    size_t span = 0;   // with rounding and guard
  };
  using Blocks = std::map<size_t, Block>;  // by offset

  size_t take_span(size_t span) CONCORD_REQUIRES(mutex_);
  void give_back_span(size_t offset, size_t span) CONCORD_REQUIRES(mutex_);
  void shrink_quarantine(size_t at_most) CONCORD_REQUIRES(mutex_);
  void return_pages(size_t offset, size_t span);
  void retire(Blocks::iterator block) CONCORD_REQUIRES(mutex_);
  void fill(size_t offset, size_t bytes);
  bool guard_is_whole(size_t offset, const Block& block) const;
  Blocks::const_iterator holding(size_t offset) const CONCORD_REQUIRES(mutex_);

  const int32_t device_;
  const Twin twin_;
  const size_t total_;
  const UniqueFd file_;

  mutable std::mutex mutex_;  // guards all below
  size_t used_ CONCORD_GUARDED_BY(mutex_) = 0;
  Blocks live_ CONCORD_GUARDED_BY(mutex_);
  std::map<size_t, size_t> free_ CONCORD_GUARDED_BY(mutex_);  // offset -> span, no two adjacent
  std::deque<std::pair<size_t, Block>> quarantine_ CONCORD_GUARDED_BY(mutex_);
  size_t quarantined_ CONCORD_GUARDED_BY(mutex_) = 0;
};

}  // namespace concord::ascend::sim
