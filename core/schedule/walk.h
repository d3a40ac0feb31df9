// Runs a schedule without devices: every rank walks its list, and each action gets a start and an end. The checker uses
// whether all actions end (check.h), the passes and the simulator use the times (passes.h, simulate.h).
//
// The machine model. A rank computes one action at a time, in the order of its list. Joined transfers are a batch. A
// rank's batches run one after another, in parallel with its computations (on a separate stream):
//   - a batch is posted when all computations before it in the list and the previous batch have ended;
//   - a transfer runs when both ends have posted it, and takes |costs.comm|; a send blocks until it is received, like
//     HCCL's; a batch ends when all of its transfers have;
//   - a computation starts when the previous one has ended and the values it needs were received.
// With |blocking| there is no second stream: nothing after a batch starts before it has ended. A schedule that ends in
// this mode also ends with overlap, which only removes conditions. In a schedule without transfers a value needs no
// posting: it is available |costs.comm| after its producer has ended.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/schedule/schedule.h"

namespace concord {

// The durations of actions, in any unit. A backward that is not split takes backward + weight.
struct ScheduleCosts {
  double forward = 1;
  double backward = 1;  // the gradient of the input
  double weight = 1;    // the gradient of the weights
  double comm = 0;      // a transfer between two ranks

  double of(ActionKind kind) const;
};

struct ActionTime {
  double start = 0;
  double end = 0;
};

// The reason why a rank is blocked: its action |index| waits for |awaited|, an action of |awaited_rank|.
struct Wait {
  int rank = 0;      // the rank that waits
  size_t index = 0;  // in its list
  int awaited_rank = 0;
  Action awaited;
};

struct Walk {
  std::vector<std::vector<ActionTime>> times;  // indexed like schedule.ranks; valid only for actions that ended
  std::vector<Wait> stuck;                     // one for each rank that did not finish
};

// The schedule must be locally valid (see check.h): every transfer has its counterpart, in the same order on both ends
// of a channel. O(actions).
Walk walk(const Schedule& schedule, const ScheduleCosts& costs, bool blocking);

}  // namespace concord
