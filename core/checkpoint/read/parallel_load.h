// Reads files once for ranks that need the same elements, and all-gathers the data (parallel_load_plan.h). Worthwhile
// only if storage is slower than the network: on a file system that several machines read at the same time. On one
// machine the page cache is faster.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <exception>
#include <functional>
#include <span>
#include <vector>

#include "core/checkpoint/read/parallel_load_plan.h"
#include "core/mesh/process_group.h"

namespace concord {

inline constexpr int64_t kSharedRoundBytes = 64 << 20;

// Reads |pieces|, all of one rank, each to its offset |at| in |share|, which is host memory.
using ReadPieces = std::function<void(std::span<const ReadShard> pieces, std::byte* share)>;

// Called by all ranks of |group|, whose memory is on |device|, with tensors of the same sizes and types in the same
// order: fills |values| (flat) on all of them. A rank whose |read| throws takes part until the end, so that the others
// do not wait for it; its error is returned, and the ranks must then agree on it, since values are undefined on all of
// them. Uses two rounds of |round_bytes| of device memory in addition to the values. Waits: for all ranks of the group.
// Throws Error if one is lost. Threads: the thread that computes.
std::exception_ptr read_and_all_gather(ProcessGroup& group, c10::Device device, std::span<const at::Tensor> values,
                                       const ReadPieces& read, int64_t round_bytes = kSharedRoundBytes);

}  // namespace concord
