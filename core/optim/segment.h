// The parts of the flat memory that a rank updates: one for each parameter and shard, with the optimizer state next to
// it. Only for the optimizer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/data_parallel/ddp.h"
#include "core/optim/flat_memory.h"
#include "core/optim/group_multipliers.h"

namespace concord {

struct Segment {
  const GradBuffer* buffer = nullptr;
  const Parameter* parameter = nullptr;
  BufferRange range = {};   // in the buffer
  int64_t local_begin = 0;  // where it begins in the parameter
  GroupMultipliers multipliers = {};
  bool on_host = false;  // its state is offloaded

  // Flat, of the range's size, where the step is computed: the device, or the host for those on it. Muon computes on
  // the device: of its segments on the host only |weights|, |moments| and |average| are there.
  at::Tensor grads = {};                 // the buffer's; for those on the host a copy
  at::Tensor weights = {};               // fp32: the parameter itself, or its main weights
  at::Tensor values = {};                // the parameter that follows |weights| if they are not itself; else undefined
  std::vector<at::Tensor> moments = {};  // moments of the update rule
  at::Tensor average = {};               // EMA of |weights| (ema_decay); undefined: none

  int64_t size() const { return range.size(); }
};

// All segments of this rank, the first |host_fraction| of their elements on the host, in segments of at most
// |host_piece|; tensors are not set.
std::vector<Segment> cut_segments(const DistributedDataParallel& ddp, const Multipliers& multipliers,
                                  double host_fraction, int64_t host_piece);

// The parts of |segment| that the rank at |place| counts: over all ranks each element of the model once.
std::vector<BufferRange> counted_parts(const Segment& segment, const RankCoordinates& place);

// Returns the parts of |segment| that |rank| writes to a checkpoint: over all |writers| each element once; without
// |writers| over all ranks, the counted parts.
std::vector<BufferRange> saved_parts(const Segment& segment, const RankLayout& layout, int64_t rank,
                                     const std::optional<RankRange>& writers);

// The parts of this rank's gradients that it counts in the global norm: over all ranks each element of the model once.
std::vector<at::Tensor> counted_grads(const DistributedDataParallel& ddp);

FlatType flat_type(const at::Tensor& tensor);  // none for an undefined one

}  // namespace concord
