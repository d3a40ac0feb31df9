// Reads the state of an optimizer from files or other ranks' memory into its tensors, by several threads.
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
  std::vector<ShardRun> runs;  // |local| counts from the beginning of |values|
  at::Tensor values;           // flat fp32, on the host or on |device|
};

inline constexpr int64_t kStatePieceElements = 4 << 20;

// Fills all |targets|, |piece_elements| at a time per thread; on the host without a copy, on a device through pinned
// memory. Elements that no run covers become or stay 0 on a device and are unchanged on the host. Throws what |source|
// throws. Waits: until the values are in place, after all work that the device has.
void read_state(const StateSource& source, const std::vector<StateTarget>& targets, const Device& device,
                int64_t piece_elements = kStatePieceElements);

// The same for |targets| that all ranks of |group| have alike: each reads a share and sends it to the others. Elements
// that no run covers become 0. Returns what |source| throws here, as read_and_all_gather does
// (core/checkpoint/read/parallel_load.h). Waits: for all ranks of the group.
std::exception_ptr read_state_shared(const StateSource& source, const std::vector<StateTarget>& targets,
                                     ProcessGroup& group, const Device& device);

}  // namespace concord
