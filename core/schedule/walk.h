// Runs a schedule without devices: every rank walks its list, and each action gets a start and an end. The checker asks
// whether all of them end (check.h), the passes and the simulator ask when (passes.h, simulate.h).
//
// The machine. A rank computes one thing at a time, in the order of its list. Transfers that are joined are a batch. A
// rank's batches run one after another, in parallel with its computations (on a separate stream):
//   - a batch is posted when all computations before it in the list have ended, and the batch before it too;
//   - a transfer runs when both ends have posted theirs, and takes |costs.comm|; a send blocks until it is received, as
//     HCCL's do; a batch ends when all of its transfers have;
//   - a computation starts when the one before it has ended and the values it needs were received.
// With |blocking| there is no second stream: nothing after a batch starts before it has ended. A schedule that ends
// then also ends with overlap, which only removes conditions. In a schedule without transfers a value needs no posting:
// it is available |costs.comm| after its producer has ended.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/schedule/schedule.h"

namespace concord {

// What one action takes, in any unit. A backward that is not split takes backward + weight.
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

// Why a rank is blocked: its action |index| waits for |awaited|, an action of |rank|.
struct Wait {
  int rank = 0;      // that waits
  size_t index = 0;  // in its list
  int awaited_rank = 0;
  Action awaited;
};

struct Walk {
  std::vector<std::vector<ActionTime>> times;  // as schedule.ranks; only those that ended are meant
  std::vector<Wait> stuck;                     // one for each rank that did not finish; empty when all did
};

// The schedule has to be locally sound (see check.h): every transfer has its counterpart, in the same order on both
// ends of a channel. O(actions).
Walk walk(const Schedule& schedule, const ScheduleCosts& costs, bool blocking);

}  // namespace concord
