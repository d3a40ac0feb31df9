#include "core/schedule/passes.h"

#include <algorithm>
#include <tuple>

#include "core/schedule/walk.h"

namespace concord {
namespace {

// The duration of a transfer while the order is determined: so small that over thousands of ranks it never delays a
// computation by a whole unit, and a power of two, so that equal times are equal numbers.
constexpr double kLittle = 1.0 / 4096;

// A transfer as seen from one of its ends.
struct Posting {
  double time;      // when its value is available
  size_t position;  // index in the list of computations; inserted before it
  Action action;

  // Transfers at the same time share a batch, in which their order does not matter: no two on one channel have the same
  // time, because a rank finishes one computation at a time. The rest makes the list deterministic.
  auto order() const { return std::tuple(time, action.kind, action.stage, action.microbatch); }
};

// Returns the position of a receive at |time|: before the first computation that ends at that time or later.
size_t receive_position(const std::vector<ActionTime>& times, double time) {
  const auto found = std::lower_bound(times.begin(), times.end(), time,
                                      [](const ActionTime& entry, double wanted) { return entry.end < wanted; });
  return static_cast<size_t>(found - times.begin());
}

using Postings = std::vector<std::vector<Posting>>;  // by rank

void post_value(const Schedule& schedule, const Walk& timing, int rank, size_t index, Postings* postings) {
  const Action& action = schedule.ranks[static_cast<size_t>(rank)][index];
  const bool forward = action.kind == ActionKind::forward;
  if (!forward && !gives_input_gradient(action.kind)) return;
  const int to = action.stage + (forward ? 1 : -1);
  if (to < 0 || to >= schedule.stages() || schedule.on_one_rank(action.stage, to)) return;
  Action send{.stage = action.stage,
              .microbatch = action.microbatch,
              .kind = forward ? ActionKind::send_activation : ActionKind::send_gradient};
  Action recv{.stage = to,
              .microbatch = action.microbatch,
              .kind = forward ? ActionKind::recv_activation : ActionKind::recv_gradient};
  const auto receiver = static_cast<size_t>(schedule.rank_of(to));
  const double time = timing.times[static_cast<size_t>(rank)][index].end;
  (*postings)[static_cast<size_t>(rank)].push_back({time, index + 1, send});
  (*postings)[receiver].push_back({time, receive_position(timing.times[receiver], time), recv});
}

// Joins the postings of each time, and places a batch at the position of its last send.
void make_batches(std::vector<Posting>* postings) {
  std::sort(postings->begin(), postings->end(),
            [](const Posting& a, const Posting& b) { return a.order() < b.order(); });
  for (size_t begin = 0; begin < postings->size();) {
    size_t end = begin;
    size_t position = 0;
    for (; end < postings->size() && (*postings)[end].time == (*postings)[begin].time; ++end) {
      position = std::max(position, (*postings)[end].position);
      (*postings)[end].action.joined = end > begin;
    }
    for (; begin < end; ++begin) (*postings)[begin].position = position;
  }
}

std::vector<Action> merge(const std::vector<Action>& computations, const std::vector<Posting>& postings) {
  std::vector<Action> merged;
  merged.reserve(computations.size() + postings.size());
  auto posting = postings.begin();
  for (size_t i = 0; i <= computations.size(); ++i) {
    for (; posting != postings.end() && posting->position == i; ++posting) merged.push_back(posting->action);
    if (i < computations.size()) merged.push_back(computations[i]);
  }
  return merged;
}

}  // namespace

Schedule add_communication(const Schedule& schedule) {
  const Walk timing = walk(schedule, ScheduleCosts{.comm = kLittle}, /*blocking=*/false);
  Postings postings(schedule.ranks.size());
  for (int rank = 0; rank < schedule.pp; ++rank) {
    for (size_t i = 0; i < schedule.ranks[static_cast<size_t>(rank)].size(); ++i)
      post_value(schedule, timing, rank, i, &postings);
  }
  Schedule complete = schedule;
  for (size_t rank = 0; rank < postings.size(); ++rank) {
    make_batches(&postings[rank]);
    complete.ranks[rank] = merge(schedule.ranks[rank], postings[rank]);
  }
  return complete;
}

Schedule add_reductions(const Schedule& schedule) {
  Schedule complete = schedule;
  for (std::vector<Action>& actions : complete.ranks) {
    std::vector<int32_t> reduced;
    std::vector<Action> reversed;
    for (auto action = actions.rbegin(); action != actions.rend(); ++action) {
      if (frees_activations(action->kind) &&
          std::find(reduced.begin(), reduced.end(), action->stage) == reduced.end()) {
        reduced.push_back(action->stage);
        reversed.push_back({.stage = action->stage, .kind = ActionKind::reduce_gradients});
      }
      reversed.push_back(*action);
    }
    actions.assign(reversed.rbegin(), reversed.rend());
  }
  return complete;
}

Schedule complete_schedule(const Schedule& schedule) {
  const Schedule reduced = has_reductions(schedule) ? schedule : add_reductions(schedule);
  return has_transfers(schedule) ? reduced : add_communication(reduced);
}

}  // namespace concord
