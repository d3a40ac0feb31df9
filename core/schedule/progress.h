// The positions of the ranks of a pipeline in their lists, for the report of a run that failed. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "core/schedule/schedule.h"

namespace concord {

// A rank is at action |index| of its list; at the list's size when it has finished.
struct ListPosition {
  size_t index = 0;
  bool waiting = false;  // for a value of another rank that the action needs
  bool operator==(const ListPosition&) const = default;
};

// The last action of |rank| that another rank's position proves: |rank| has sent what that one has used since. Nothing
// where none does.
struct ProvenAction {
  size_t index = 0;
  int by = 0;  // the rank that has received it
  bool operator==(const ProvenAction&) const = default;
};
std::optional<ProvenAction> proven_action(const Schedule& schedule, int rank,
                                          std::span<const std::optional<ListPosition>> positions);

// A line for each rank. |positions| has one for each rank of the pipeline, nothing for one that did not answer;
// |world_ranks| are their ranks in the job.
//
//   rank 0: at action 12 of 40 (0B1), waits for rank 1
//   rank 1: no answer; past action 9 of 42 (1SEND_B0), which rank 0 has received
std::string describe_positions(const Schedule& schedule, std::span<const std::optional<ListPosition>> positions,
                               std::span<const int64_t> world_ranks);

}  // namespace concord
