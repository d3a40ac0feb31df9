// The memory of one device: what is allocated, what it is made of, and how misuse is found.
//
// An allocation is filled with 0xff (NaN in every float type, -1 in integers) before it is returned and again when it
// is freed, so that memory read before it is written, or after it is freed, cannot be taken for a result. Behind every
// allocation lie guard bytes, checked when it is freed. A freed range is kept in quarantine for a while: its address is
// not given out again immediately, and using it is an error that says so.
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

// Fills the |bytes| at |hidden| with values that cannot be mistaken for a result; CONCORD_SIM_NPU_POISON bounds how
// many.
void poison(std::byte* hidden, size_t bytes);

class DeviceMemory {
 public:
  // |twin| has room for more than |total_bytes|, the memory of the device: guards and quarantine take addresses only.
  DeviceMemory(int32_t device, const Twin& twin, size_t total_bytes);

  // Throws 207001 if the device has not that much left.
  void* allocate(size_t bytes);
  // Throws 107000 if |address| does not begin a live allocation, 507053 where its guard was overwritten (it is freed
  // then too).
  void release(void* address);
  // All of it, as a reset of the device does.
  void release_all();

  // Takes from the total (or gives back, where negative) without an address. Throws 207001.
  void charge(int64_t bytes);

  // Empty if the |bytes| at |address| lie in one live allocation; else what is wrong with them.
  std::string complaint(const void* address, size_t bytes) const;

  // The live allocation that holds |address|: where in the memory file it begins, and its size. False if none does.
  bool find(const void* address, size_t* out_file_offset, size_t* out_bytes) const;

  const Twin& twin() const { return twin_; }
  int file() const { return file_.get(); }
  size_t total_bytes() const { return total_; }
  size_t used_bytes() const;

 private:
  struct Block {
    size_t bytes = 0;  // asked for
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
