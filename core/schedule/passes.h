// What a schedule of computations lacks before it can run: list in, list out.
#pragma once

#include "core/schedule/schedule.h"

namespace concord {

// Adds a send and a receive for every value that goes to another rank.
//
// Transfers are put in one order over all ranks: that of the times at which their values are available if a forward and
// each half of a backward take one unit and a transfer next to nothing. Every rank has its transfers in this order,
// so none can wait for another in a circle, even when each send blocks until it is received. Transfers of one rank
// with the same time are joined into a batch. "Next to nothing" and not nothing: a rank then runs a little later than
// the one before it, as it will with real costs, receives its next input while it computes, and sends after that. With
// transfers of up to a tenth of a forward, one ordered channel costs hardly more than if each value travelled alone.
//
// A batch that sends is placed right after the computation that produces the value. One that only receives is placed
// before the computation that is running when the value comes, so that it is taken in the meantime; not earlier,
// because its buffer would lie there unused.
//
// The schedule has no transfers yet and has passed the checker.
Schedule add_communication(const Schedule& schedule);

// Adds REDUCE_GRAD of each stage right after its last weight gradient. An executor that reduces bucket by bucket
// sees it one action ahead. A schedule without backwards stays unchanged.
Schedule add_reductions(const Schedule& schedule);

// Both, reductions after the transfers of the same computation: what an executor runs. What a schedule from a file has
// of either stays unchanged.
Schedule complete_schedule(const Schedule& schedule);

}  // namespace concord
