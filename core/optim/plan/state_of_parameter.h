// The rules by which the optimizer chooses the state of a parameter and its place, as pure functions: the optimizer and
// the plan of a run's memory (trainer/planning/memory_plan.h) follow them. Needs no libtorch. Threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/optim/state_precision.h"
#include "core/parallel/shard_spec.h"

namespace concord {

// Whether moments of the parameter can be blocks of codes (state_precision.h): a question of the global tensors that it
// represents, not of the layout.
bool takes_blocks(const ShardSpec& parameter);

// Whether muon updates the parameter: matrices, except embeddings and output layers, which AdamW updates.
bool takes_muon(const ShardSpec& parameter);

// Returns the state of an element of |parameter|. Without blocks of codes if the parameter cannot have them.
StatePlan plan_state(const OptimizerOptions& options, const ShardSpec& parameter, bool has_main);

// Part of the segments that is on the host.
struct HostShare {
  double fraction = 0;  // of the elements
  int64_t piece = 0;    // most elements of a segment
  int64_t unit = 1;     // segments are only split at multiples of it
};
// Returns the number of elements of the host's next segment, from the start of |size| elements, if |left| elements are
// still to be moved to the host; 0: no more.
int64_t next_host_piece(int64_t size, int64_t left, const HostShare& share);

}  // namespace concord
