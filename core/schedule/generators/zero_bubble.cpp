// Zero-bubble schedules (Qi, Wan, Huang, Lin 2023): the backward is split, the input gradient is sent to the previous
// stage immediately, and the weight gradient fills the bubble.
//
// The order of forwards and input gradients is a fixed pattern; the positions of the weight gradients are found by
// simulating the ranks, one unit of time per action. For equal costs this gives the shortest step for the pattern,
//   zb-h1   3 m + pp - 1   for m >= pp          zb-v   6 m + pp - 1   (of half a stage each) for m >= 2 pp
// with the activations that 1f1b holds on its first rank, pp of a whole stage.
#include <algorithm>
#include <deque>
#include <limits>
#include <stdexcept>

#include "core/schedule/generators/generators.h"

namespace concord::generators {
namespace {

// The ranks run in lockstep, one unit of time at a time.
class Filler {
 public:
  explicit Filler(Schedule* schedule)
      : schedule_(schedule),
        ranks_(schedule->ranks.size()),
        forward_end_(schedule->slots(), kNever),
        gradient_end_(schedule->slots(), kNever) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) ranks_[rank].order.swap(schedule->ranks[rank]);
  }

  void run() {
    size_t left = 0;  // remaining actions, each input gradient with its weight gradient
    for (const Rank& rank : ranks_) {
      for (const Action& action : rank.order) left += action.kind == ActionKind::input_grad ? 2 : 1;
    }
    for (size_t taken = 0; left > 0; left -= taken, ++now_) {
      taken = 0;
      for (size_t rank = 0; rank < ranks_.size(); ++rank) taken += step(rank) ? 1 : 0;
      // If no rank can do anything, nothing will ever change.
      if (taken == 0) throw std::logic_error("the pattern of a zero-bubble schedule deadlocks");
    }
  }

 private:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  struct Rank {
    std::vector<Action> order;    // without weight gradients
    size_t next = 0;              // index in |order|
    std::deque<Action> deferred;  // weight gradients that are ready
    int64_t held = 0;
  };

  bool can_start(const Action& action) const {
    const std::optional<Action> producer = producer_of(*schedule_, action);
    if (!producer) return true;
    const auto& ends = producer->kind == ActionKind::forward ? forward_end_ : gradient_end_;
    return ends[schedule_->slot(*producer)] <= now_;
  }

  // Gives the rank an action from now_ to now_ + 1; returns false if none is possible.
  bool step(size_t index) {
    Rank& rank = ranks_[index];
    const bool more = rank.next < rank.order.size();
    const bool full =
        more && rank.order[rank.next].kind == ActionKind::forward && rank.held == schedule_->activation_limit[index];
    if (more && !full && can_start(rank.order[rank.next])) {
      take(&rank, rank.order[rank.next++], index);
      return true;
    }
    if (rank.deferred.empty()) return false;
    const Action action = rank.deferred.front();
    rank.deferred.pop_front();
    take(&rank, action, index);
    return true;
  }

  void take(Rank* rank, const Action& action, size_t index) {
    schedule_->ranks[index].push_back(action);
    if (action.kind == ActionKind::forward) {
      forward_end_[schedule_->slot(action)] = now_ + 1;
      ++rank->held;
    } else if (action.kind == ActionKind::input_grad) {
      gradient_end_[schedule_->slot(action)] = now_ + 1;
      rank->deferred.push_back(
          {.stage = action.stage, .microbatch = action.microbatch, .kind = ActionKind::weight_grad});
    } else {
      --rank->held;
    }
  }

  Schedule* schedule_;
  std::vector<Rank> ranks_;
  std::vector<int64_t> forward_end_;
  std::vector<int64_t> gradient_end_;
  int64_t now_ = 0;
};

}  // namespace

void fill_weight_gradients(Schedule* schedule) { Filler(schedule).run(); }

void zb_h1(const Sizes& sizes, Schedule* schedule) {
  one_f_one_b(sizes, schedule);
  for (std::vector<Action>& actions : schedule->ranks) {
    for (Action& action : actions) {
      if (action.kind == ActionKind::backward) action.kind = ActionKind::input_grad;
    }
  }
  // The later ranks may hold as much as the first one, so that weight gradients can be deferred to the bubble.
  schedule->activation_limit.assign(schedule->ranks.size(), std::min(sizes.pp, sizes.microbatches));
  fill_weight_gradients(schedule);
}

void zb_v(const Sizes& sizes, Schedule* schedule) {
  for (int rank = 0; rank < sizes.pp; ++rank) {
    Numbering number(2 * sizes.pp, sizes.microbatches, &schedule->ranks[static_cast<size_t>(rank)]);
    const int there = rank;
    const int back = 2 * sizes.pp - 1 - rank;
    // Until micro-batch 0 returns to this rank; until its gradient does; then one of each until the end.
    for (int i = 0; i < 2 * (sizes.pp - rank) - 1; ++i) number.add(ActionKind::forward, there);
    for (int i = 0; i < rank; ++i) {
      number.add(ActionKind::forward, back);
      number.add(ActionKind::forward, there);
    }
    for (int i = 0; i < sizes.pp - rank; ++i) {
      number.add(ActionKind::forward, back);
      number.add(ActionKind::input_grad, back);
    }
    while (number.added(ActionKind::input_grad, there) < sizes.microbatches) {
      number.add(ActionKind::forward, there);
      number.add(ActionKind::input_grad, there);
      number.add(ActionKind::forward, back);
      number.add(ActionKind::input_grad, back);
    }
  }
  schedule->activation_limit.assign(schedule->ranks.size(), int64_t{2} * std::min(sizes.pp, sizes.microbatches));
  fill_weight_gradients(schedule);
}

}  // namespace concord::generators
