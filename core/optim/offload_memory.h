// Whether the host has the memory that offloading takes. It is pinned, so that the kernel could only kill
// the process for it, without a message.
#pragma once

#include <cstdint>
#include <string>

#include "core/mesh/parallel_context.h"
#include "platform/base/host_memory.hpp"

namespace concord {

// Bytes that the ranks of one machine need together, for |fraction| of the optimizer's elements and the inputs of
// recomputed layers.
struct OffloadMemory {
  int64_t bytes = 0;
  int64_t layer_inputs = 0;  // part of |bytes|
  int64_t ranks = 0;
  double fraction = 1;
};

// The message if |needed| does not fit into |memory|: what is needed, what there is, and what to change. Else empty.
// Pure.
std::string offload_shortage(const OffloadMemory& needed, const HostMemory& memory);

// All ranks, before each allocates |own|. The limit is what the machine and the cgroup of this process have available,
// or |limit_gib|, if that is less and not 0. Throws ConfigError on all ranks if the ranks of one machine need more than
// it has. Waits: for all ranks.
void check_offload_memory(ParallelContext& job, const OffloadMemory& own, double limit_gib);

}  // namespace concord
