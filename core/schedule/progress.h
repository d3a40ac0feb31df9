// The positions of the ranks of a pipeline in their lists, for the report of a failed run. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "core/schedule/schedule.h"

namespace concord {

// A rank is at action |index| of its list; at the size of the list once it has finished.
struct ListPosition {
  size_t index = 0;
  bool waiting = false;  // for a value of another rank that the action needs
  bool operator==(const ListPosition&) const = default;
};

// The last action that |rank| must have completed, given that another rank has since used what it sent. nullopt if no
// position proves one.
struct ProvenAction {
  size_t index = 0;
  int by = 0;  // the rank that has received the value
  bool operator==(const ProvenAction&) const = default;
};
std::optional<ProvenAction> proven_action(const Schedule& schedule, int rank,
                                          std::span<const std::optional<ListPosition>> positions);

// Returns one line per rank. |positions| has an entry for each rank of the pipeline, nullopt if it did not reply;
// |world_ranks| are their ranks in the job.
//
//   rank 0: at action 12 of 40 (0B1), waits for rank 1
//   rank 1: no answer; past action 9 of 42 (1SEND_B0), which rank 0 has received
std::string describe_positions(const Schedule& schedule, std::span<const std::optional<ListPosition>> positions,
                               std::span<const int64_t> world_ranks);

}  // namespace concord
