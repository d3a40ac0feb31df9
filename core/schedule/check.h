// Proves that a schedule can run, whether it comes from a generator, a pass or a user's file.
//
//   local        every action belongs to a stage of its rank, occurs once, and after what it needs of the rank;
//                no more activations are held than activation_limit allows
//   complete     every micro-batch goes forward through every stage, and back through all of them or none
//   channels     (with transfers) between two ranks the n-th send is what the n-th receive expects
//   progress     all ranks reach the end of their lists even if each send blocks until it is received and nothing
//                runs in parallel with it (walk.h)
// Checked in this order; the first action that breaks a rule is named.
#pragma once

#include <optional>
#include <string>

#include "core/schedule/schedule.h"

namespace concord {

struct ScheduleFault {
  int rank = 0;
  size_t index = 0;  // in the rank's list; its size where an action is missing
  std::string what;  // what is wrong with it, as a sentence without the place
};

// Nothing for a schedule that can run. O(actions). Throws ConfigError if the sizes of |schedule| contradict each
// other.
std::optional<ScheduleFault> find_fault(const Schedule& schedule);

// Throws ConfigError with the place and the action: "schedule 1f1b, rank 2, action 5 (2F1): ...".
void check_schedule(const Schedule& schedule);

}  // namespace concord
