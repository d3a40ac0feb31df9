// The schedules of a job as its user asks for them: of a step, by kind or from the user's file, and of an evaluation
// over the same stages. Complete and checked, ready for an executor. Pure.
#pragma once

#include "core/schedule/schedule.h"
#include "core/schedule/schedules.h"

namespace concord {

// Where request.kind ends with ".csv" it is read from that file, which has to have the request's sizes; a vpp of 0
// takes what is there. Throws ConfigError as make_schedule and load_schedule_csv do, and with both numbers where sizes
// differ.
Schedule step_schedule(const ScheduleRequest& request);

// Forward only, over the stages of |training|.
Schedule evaluation_schedule(const Schedule& training, int64_t microbatches);

// One micro-batch through all stages in their order and, with |backward|, back again: nothing overlaps.
Schedule single_schedule(Placement placement, int pp, int vpp, bool backward);

// How the stages of a schedule lie on the ranks: a model has to be dealt out alike. Throws ConfigError for a schedule
// from a file that has them in neither way.
Placement placement_of(const Schedule& schedule);

}  // namespace concord
