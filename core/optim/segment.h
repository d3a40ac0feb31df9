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
#include "core/optim/plan/state_of_parameter.h"

namespace concord {

struct Segment {
  const GradBuffer* buffer = nullptr;
  const Parameter* parameter = nullptr;
  BufferRange range = {};   // in the buffer
  int64_t local_begin = 0;  // where it begins in the parameter
  GroupMultipliers multipliers = {};
  bool on_host = false;   // its state is offloaded
  bool streamed = false;  // and the device updates it, which also keeps its EMA

  // Flat, of the range's size, where the step is computed: the device, or the host for those on it. A segment on the
  // host that the device updates has only its state there.
  at::Tensor grads = {};            // the buffer's; for those on the host a copy
  at::Tensor weights = {};          // fp32: the parameter itself, or its main weights; undefined if has_narrow_main
  at::Tensor values = {};           // the parameter that follows |weights| if they are not itself; else undefined
  at::Tensor remainder = {};        // with |values| the main weights; see core/optim/main_weights.h
  std::vector<ShardRun> runs = {};  // global indices, for stochastic rounding; |local| is relative to the segment
  std::vector<at::Tensor> moments = {};  // moments of the update rule
  std::vector<at::Tensor> scales = {};   // block scales; undefined unless the moment is in codes
  at::Tensor average = {};               // EMA of |weights| (ema_decay); undefined: none

  int64_t size() const { return range.size(); }
  bool has_narrow_main() const { return !weights.defined(); }  // no fp32 copy of the main weights
};

// All segments of this rank, the first |host|.fraction of their elements on the host; tensors are not set.
std::vector<Segment> cut_segments(const DistributedDataParallel& ddp, const Multipliers& multipliers,
                                  const HostShare& host);
// Returns where the scales of blocks are in the tensors of scales, if their values are at |runs|: all of |runs| divided
// by the size of a block. Throws ConfigError, with the tensor, if a block is split.
std::vector<ShardRun> scale_runs(std::vector<ShardRun> runs);

// The parts of |segment| that the rank at |place| counts: over all ranks each element of the model once.
std::vector<BufferRange> counted_parts(const Segment& segment, const RankCoordinates& place);

// Returns the parts of |segment| that |rank| writes to a checkpoint: over all |writers| each element once; without
// |writers| over all ranks, the counted parts.
std::vector<BufferRange> saved_parts(const Segment& segment, const RankLayout& layout, int64_t rank,
                                     const std::optional<RankRange>& writers);

// The parts of this rank's gradients that it counts in the global norm: over all ranks each element of the model once.
std::vector<at::Tensor> counted_grads(const DistributedDataParallel& ddp);

FlatType flat_type(const at::Tensor& tensor);  // none for an undefined one

inline constexpr const char* kMainKey = "main";    // key of the main weights in the state
inline constexpr const char* kAverageKey = "ema";  // key of their EMA

// Returns the segment's part of the buffer of parameters.
inline at::Tensor parameter_values(const Segment& segment) {
  return GradBuffer::part(segment.buffer->values(), segment.range);
}
// Whether |values| are that part of the buffer, not a copy on the host.
inline bool holds_parameter(const Segment& segment) {
  return segment.values.defined() && segment.values.device() == segment.buffer->values().device() &&
         segment.values.data_ptr() == parameter_values(segment).data_ptr();
}
// Sets the parameter to the weights, rounded.
inline void set_parameter(const Segment& segment) {
  if (!segment.has_narrow_main()) {
    parameter_values(segment).copy_(segment.weights);
  } else if (!holds_parameter(segment)) {
    parameter_values(segment).copy_(segment.values);
  }
}
// Whether the parameters are 16-bit, with main weights that are part of the state.
inline bool has_main(const GradBuffer& buffer) { return buffer.values().scalar_type() != at::kFloat; }
inline bool has_main(const Segment& segment) { return has_main(*segment.buffer); }

}  // namespace concord
