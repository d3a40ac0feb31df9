// Reads the state of an optimizer from files or from other ranks' memory into its tensors, with several threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <string>
#include <vector>

#include "core/checkpoint/read/optimizer_state.h"
#include "core/mesh/process_group.h"
#include "platform/cpp/device.hpp"

namespace concord {

struct StateTarget {
  std::string key;
  std::vector<ShardRun> runs;  // |local| is relative to |values|
  at::Tensor values;           // flat, on the host or on |device|; bf16: values are rounded; uint8: codes
  bool splits = false;         // bf16: the high parts of values, int16: the low parts (core/torch/remainder.h)
};

inline constexpr int64_t kStatePieceElements = 4 << 20;

// Fills all |targets|, |piece_elements| at a time per thread; on the host without a copy, on a device through pinned
// memory. Elements that no run covers become 0 on a device and are unchanged on the host. Rethrows errors of |source|.
// Waits: until the values are in place, after all work of the device.
void read_state(const StateSource& source, const std::vector<StateTarget>& targets, const Device& device,
                int64_t piece_elements = kStatePieceElements);

// Like read_state(), for |targets| that are replicated over the ranks of |group|: each reads a share and all-gathers
// it. Elements that no run covers become 0. Returns the error of |source| on this rank, like read_and_all_gather
// (core/checkpoint/read/parallel_load.h). Waits: for all ranks of the group.
std::exception_ptr read_state_shared(const StateSource& source, const std::vector<StateTarget>& targets,
                                     ProcessGroup& group, const Device& device);

}  // namespace concord
