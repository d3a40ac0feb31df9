// Which inputs of recomputed layers are in the host's memory between forward and backward, and when they move. Pure
// values; threads: any.
//
// Units are the runs of core/parallel/recompute.h, numbered from 0. The input of a unit leaves when its forward begins,
// in parallel with it, and returns when the backward of the next unit begins, so that it has arrived when its own does.
// The last recomputed unit's input stays, since its backward follows its forward: it would return as soon as it left.
// So at most two inputs that move are on the device at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/parallel/offload/activation_offload_args.h"
#include "core/parallel/recompute.h"

namespace concord {

struct ActivationMove {
  enum class To { host, device };
  enum class Pass { forward, backward };
  int64_t unit;
  To to;
  Pass pass;  // the move starts when this pass of unit |at| begins
  int64_t at;
  bool operator==(const ActivationMove&) const = default;
};

// Returns the moves of the units |runs| of a chunk, in the order they start. |input_stays|: the caller keeps the input
// of the first unit on the device in any case, as a pipeline does. Throws ConfigError if args.is_on() and no unit is
// recomputed.
std::vector<ActivationMove> activation_moves(std::span<const LayerRun> runs, const ActivationOffloadArgs& args,
                                             bool input_stays);

// Returns the units whose inputs move, each one once.
int64_t offloaded_units(std::span<const ActivationMove> moves);

// "F0: 0 out", the input of unit 0 to the host, when the forward of unit 0 begins; "B1: 0 in", back to the device.
std::string text_of(const ActivationMove& move);

}  // namespace concord
