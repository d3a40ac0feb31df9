// Verifies that a schedule can run, whether it comes from a generator, a pass or a user's file.
//
//   local        every action belongs to a stage of its rank, occurs once, and after the actions of the rank that it
//                depends on; at most activation_limit activations are held
//   complete     every micro-batch runs forward through every stage, and backward through all of them or none
//   channels     (with transfers) between two ranks the n-th send matches the n-th receive
//   progress     all ranks reach the end of their lists even if each send blocks until it is received and nothing
//                overlaps with it (walk.h)
// The rules are checked in this order; the first action that violates one is reported.
#pragma once

#include <optional>
#include <string>

#include "core/schedule/schedule.h"

namespace concord {

struct ScheduleFault {
  int rank = 0;
  size_t index = 0;  // in the rank's list; the size of the list if an action is missing
  std::string what;  // what is wrong, without the position
};

// Returns the first violation, or nullopt if the schedule can run. O(actions). Throws ConfigError if the sizes of
// |schedule| contradict each other.
std::optional<ScheduleFault> find_fault(const Schedule& schedule);

// Throws ConfigError with the position and the action: "schedule 1f1b, rank 2, action 5 (2F1): ...".
void check_schedule(const Schedule& schedule);

}  // namespace concord
