// Handles of the simulated runtime: those of backends/cpu, with CANN's errors.
#pragma once

#include <cstdint>

#include "backends/ascend/sim/runtime/error.h"
#include "backends/cpu/handle_table.h"

namespace concord::ascend::sim {

struct HandleErrors {
  [[noreturn]] static void full(uint64_t live, const char* kind) {
    fail(abi::kRtMemoryAllocation, text("there are already %lu live %ss", live, kind));
  }
  [[noreturn]] static void invalid(uint64_t value, const char* kind, bool has_tag) {
    fail(abi::kRtInvalidHandle, text("%p is not a valid %s: it %s", reinterpret_cast<void*>(value), kind,
                                     has_tag ? "was destroyed" : "was not created by this runtime"));
  }
};

// Use share_locked to find an object: programs may destroy handles while other threads use them.
template <class Object>
using HandleTable = cpu::HandleTable<void*, Object, HandleErrors>;

}  // namespace concord::ascend::sim
