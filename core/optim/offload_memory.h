// Whether the host has the memory that an offloaded optimizer takes. It is pinned, so that the kernel could only kill
// the process for it, without a message.
#pragma once

#include <cstdint>
#include <string>

#include "core/mesh/parallel_context.h"
#include "platform/base/host_memory.hpp"

namespace concord {

// Bytes that the ranks of one machine need together, for |fraction| of the optimizer's elements.
struct OffloadMemory {
  int64_t bytes = 0;
  int64_t ranks = 0;
  double fraction = 1;
};

// The message if |needed| does not fit into |memory|: what is needed, what there is, and what to change. Else empty.
// Pure.
std::string offload_shortage(const OffloadMemory& needed, const HostMemory& memory);

// All ranks, before they allocate |bytes| each. The limit is what the machine and the cgroup of this process have
// available, or CONCORD_HOST_MEMORY in GiB, if that is less. Throws ConfigError on all ranks if the ranks of one
// machine need more than it has. Waits: for all ranks.
void check_offload_memory(ParallelContext& job, int64_t bytes, double fraction);

}  // namespace concord
