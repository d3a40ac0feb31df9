#include "core/schedule/progress.h"

#include <fmt/core.h>

#include <algorithm>

namespace concord {
namespace {

const std::vector<Action>& list_of(const Schedule& schedule, int rank) {
  return schedule.ranks[static_cast<size_t>(rank)];
}

// Returns the send of another rank that provides |computation|'s value; nullopt if it needs none, or gets it from its
// own rank.
std::optional<Action> awaited_send(const Schedule& schedule, const Action& computation) {
  const std::optional<Action> producer = producer_of(schedule, computation);
  if (!producer || schedule.on_one_rank(producer->stage, computation.stage)) return std::nullopt;
  const bool forward = computation.kind == ActionKind::forward;
  return Action{.stage = producer->stage,
                .microbatch = producer->microbatch,
                .kind = forward ? ActionKind::send_activation : ActionKind::send_gradient};
}

size_t find(const std::vector<Action>& actions, const Action& wanted) {
  const auto found = std::find_if(actions.begin(), actions.end(), [&](const Action& each) {
    return each.stage == wanted.stage && each.microbatch == wanted.microbatch && each.kind == wanted.kind;
  });
  return static_cast<size_t>(found - actions.begin());
}

// Returns the number of computations whose values have arrived: those before the position, and the one at it unless it
// waits.
size_t begun(const ListPosition& position) { return position.index + (position.waiting ? 0 : 1); }

std::string place(const Schedule& schedule, int rank, size_t index) {
  const std::vector<Action>& actions = list_of(schedule, rank);
  return fmt::format("action {} of {} ({})", index + 1, actions.size(), to_string(actions[index]));
}

std::string describe(const Schedule& schedule, int rank, const ListPosition& position,
                     std::span<const int64_t> world_ranks) {
  const std::vector<Action>& actions = list_of(schedule, rank);
  if (position.index >= actions.size()) return fmt::format("at the end of its {} actions", actions.size());
  const std::string at = "at " + place(schedule, rank, position.index);
  const std::optional<Action> awaited = awaited_send(schedule, actions[position.index]);
  if (!position.waiting || !awaited) return at;
  return fmt::format("{}, waits for {} of rank {}", at, to_string(*awaited),
                     world_ranks[static_cast<size_t>(schedule.rank_of(awaited->stage))]);
}

}  // namespace

std::optional<ProvenAction> proven_action(const Schedule& schedule, int rank,
                                          std::span<const std::optional<ListPosition>> positions) {
  std::optional<ProvenAction> proven;
  for (int other = 0; other < schedule.pp; ++other) {
    const std::optional<ListPosition>& position = positions[static_cast<size_t>(other)];
    if (other == rank || !position) continue;
    const std::vector<Action>& actions = list_of(schedule, other);
    for (size_t i = 0; i < std::min(actions.size(), begun(*position)); ++i) {
      const std::optional<Action> send = awaited_send(schedule, actions[i]);
      if (!send || schedule.rank_of(send->stage) != rank) continue;
      const size_t index = find(list_of(schedule, rank), *send);
      if (index < list_of(schedule, rank).size() && (!proven || index > proven->index)) proven = {index, other};
    }
  }
  return proven;
}

std::string describe_positions(const Schedule& schedule, std::span<const std::optional<ListPosition>> positions,
                               std::span<const int64_t> world_ranks) {
  std::string lines;
  for (int rank = 0; rank < schedule.pp; ++rank) {
    const auto index = static_cast<size_t>(rank);
    std::string line = "no answer";
    if (positions[index]) {
      line = describe(schedule, rank, *positions[index], world_ranks);
    } else if (const auto proven = proven_action(schedule, rank, positions)) {
      line += fmt::format("; past {}, which rank {} has received", place(schedule, rank, proven->index),
                          world_ranks[static_cast<size_t>(proven->by)]);
    }
    lines += fmt::format("\n  rank {}: {}", world_ranks[index], line);
  }
  return lines;
}

}  // namespace concord
