// The schedules of a job: that of a training step, by kind or from the user's file, and that of an evaluation over the
// same stages. Complete and checked, ready for an executor. Pure.
#pragma once

#include "core/schedule/schedule.h"
#include "core/schedule/schedules.h"

namespace concord {

// Returns the schedule of a step. If request.kind ends with ".csv" it is read from that file, which must have the
// request's sizes; vpp 0 accepts any. Throws ConfigError like make_schedule and load_schedule_csv, and with both
// numbers if sizes differ.
Schedule step_schedule(const ScheduleRequest& request);

// Returns a forward-only schedule over the stages of |training|.
Schedule evaluation_schedule(const Schedule& training, int64_t microbatches);

// Returns a schedule of one micro-batch forward through all stages and, with |backward|, back again: nothing overlaps.
Schedule single_schedule(Placement placement, int pp, int vpp, bool backward);

// Returns the placement of the stages of a schedule, which the model's layers must match. Throws ConfigError for a
// schedule from a file whose placement is neither loop nor v.
Placement placement_of(const Schedule& schedule);

}  // namespace concord
