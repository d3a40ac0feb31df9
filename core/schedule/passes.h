// Passes that complete a schedule of computations: schedule in, schedule out.
#pragma once

#include "core/schedule/schedule.h"

namespace concord {

// Adds a send and a receive for every value that another rank uses.
//
// Transfers are sorted in one order over all ranks: by the time at which their values are available if a forward and
// each half of a backward take one unit and a transfer takes almost no time. Every rank has its transfers in this
// order, so that they cannot wait for each other in a cycle, even if each send blocks until it is received. Transfers
// of one rank with the same time are joined into a batch. Transfers take some time in this model, so that a rank runs
// slightly later than the previous one, as with real costs: it receives its next input while it computes, and sends
// after that. With transfers of up to a tenth of a forward, one ordered channel costs hardly more than independent
// transfers.
//
// A batch that sends is placed right after the computation that produces the value. A batch that only receives is
// placed before the computation that is running when the value arrives, so that they overlap; not earlier, because its
// buffer would be allocated unused.
//
// The schedule must have passed the checker and have no transfers yet.
Schedule add_communication(const Schedule& schedule);

// Adds REDUCE_GRAD of each stage right after its last weight gradient. An executor that reduces bucket by bucket looks
// one action ahead. A schedule without backwards is unchanged.
Schedule add_reductions(const Schedule& schedule);

// Runs both passes, reductions after the transfers of the same computation: the result is what an executor runs.
// Transfers or reductions that a schedule from a file already has are unchanged.
Schedule complete_schedule(const Schedule& schedule);

}  // namespace concord
