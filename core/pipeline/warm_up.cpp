#include "core/pipeline/warm_up.h"

#include <algorithm>

namespace concord {
namespace {

bool is_of_forward(const Action& action) {
  return action.kind == ActionKind::forward || action.kind == ActionKind::send_activation ||
         action.kind == ActionKind::recv_activation;
}

// The heads by themselves, without regard to other ranks. A batch is posted as a whole.
size_t forwards_only(const std::vector<Action>& actions) {
  const auto end = std::find_if_not(actions.begin(), actions.end(), is_of_forward);
  auto index = static_cast<size_t>(end - actions.begin());
  while (index < actions.size() && actions[index].joined) --index;
  return index;
}

// The positions of the two ends of each activation's transfer in their ranks' lists, by the slot of the sending stage.
struct Ends {
  size_t send = 0;
  size_t recv = 0;
};

size_t slot_of(const Schedule& schedule, Action action) {
  if (action.kind == ActionKind::recv_activation) --action.stage;
  return schedule.slot(action);
}

std::vector<Ends> ends_of_transfers(const Schedule& schedule) {
  std::vector<Ends> ends(schedule.slots());
  for (const std::vector<Action>& actions : schedule.ranks) {
    for (size_t i = 0; i < actions.size(); ++i) {
      if (actions[i].kind == ActionKind::send_activation) ends[slot_of(schedule, actions[i])].send = i;
      if (actions[i].kind == ActionKind::recv_activation) ends[slot_of(schedule, actions[i])].recv = i;
    }
  }
  return ends;
}

}  // namespace

std::vector<size_t> warm_up(const Schedule& schedule) {
  const std::vector<Ends> ends = ends_of_transfers(schedule);
  std::vector<size_t> heads;
  for (const std::vector<Action>& actions : schedule.ranks) heads.push_back(forwards_only(actions));
  const auto is_open = [&](const Action& action) {
    if (!is_transfer(action.kind)) return false;
    const Ends& both = ends[slot_of(schedule, action)];
    const size_t other = is_send(action.kind) ? both.recv : both.send;
    return other >= heads[static_cast<size_t>(schedule.rank_of(peer_stage(action)))];
  };
  // Shortening a head may invalidate one of another rank.
  for (bool shorter = true; shorter;) {
    shorter = false;
    for (size_t rank = 0; rank < heads.size(); ++rank) {
      const std::vector<Action>& actions = schedule.ranks[rank];
      const auto end = actions.begin() + static_cast<std::ptrdiff_t>(heads[rank]);
      auto open = std::find_if(actions.begin(), end, is_open);
      if (open == end) continue;
      while (open->joined) --open;
      heads[rank] = static_cast<size_t>(open - actions.begin());
      shorter = true;
    }
  }
  return heads;
}

}  // namespace concord
