#include "core/schedule/walk.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <utility>

namespace concord {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::infinity();

bool is_forward_value(ActionKind kind) {
  return kind == ActionKind::forward || kind == ActionKind::send_activation || kind == ActionKind::recv_activation;
}

class Machine {
 public:
  Machine(const Schedule& schedule, const ScheduleCosts& costs, bool blocking)
      : schedule_(schedule),
        costs_(costs),
        blocking_(blocking),
        transfers_listed_(has_transfers(schedule)),
        ranks_(schedule.ranks.size()) {
    for (std::vector<Value>& values : values_) values.resize(schedule.slots());
    result_.times.resize(ranks_.size());
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      result_.times[rank].resize(schedule.ranks[rank].size());
      wake(static_cast<int>(rank));
      find_batch(rank, 0);
    }
  }

  Walk run() {
    while (!awake_.empty()) {
      const auto rank = static_cast<size_t>(awake_.front());
      awake_.pop_front();
      ranks_[rank].awake = false;
      while (compute(rank) || communicate(rank)) {
      }
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) note_stuck(rank);
    return std::move(result_);
  }

 private:
  // The output of a (stage, micro-batch), or the gradient of its input, in transit to the adjacent stage.
  struct Value {
    double produced = kUnknown;  // its computation has ended
    double sent = kUnknown;      // posted by the sender
    double awaited = kUnknown;   // posted by the receiver
    double arrived = kUnknown;
  };
  struct Rank {
    size_t next = 0;         // index of the next computation
    double compute_end = 0;  // end of the previous computation
    size_t batch_begin = 0;  // batch to be posted or running; the end of the list if none
    size_t batch_end = 0;
    std::optional<size_t> batch_after;  // the last computation before the batch
    bool posted = false;
    double comm_end = 0;  // end of the previous batch
    bool awake = false;
  };

  const std::vector<Action>& list(size_t rank) const { return schedule_.ranks[rank]; }

  void wake(int rank) {
    if (std::exchange(ranks_[static_cast<size_t>(rank)].awake, true)) return;
    awake_.push_back(rank);
  }

  // Returns the value that a computation produces or a transfer carries; its slot is that of the producing stage.
  Value& value_of(const Action& action) {
    Action producer = action;
    if (is_recv(action.kind)) producer.stage = peer_stage(action);
    return values_[is_forward_value(action.kind) ? 0 : 1][schedule_.slot(producer)];
  }

  void find_batch(size_t rank, size_t from) {
    const std::vector<Action>& actions = list(rank);
    Rank& state = ranks_[rank];
    while (from < actions.size() && !is_transfer(actions[from].kind)) state.batch_after = from++;
    state.batch_begin = state.batch_end = from;
    state.posted = false;
    if (from < actions.size()) {
      do ++state.batch_end;
      while (state.batch_end < actions.size() && actions[state.batch_end].joined);
    }
  }

  // Returns when the value that |action| waits for is on its rank; kUnknown if not known yet.
  double input_ready(const Action& action) {
    const std::optional<Action> producer = producer_of(schedule_, action);
    if (!producer) return 0;
    const Value& value = value_of(*producer);
    if (schedule_.on_one_rank(action.stage, producer->stage)) return value.produced;
    return transfers_listed_ ? value.arrived : value.produced + costs_.comm;
  }

  // Runs the next computation of a rank; false if none can start.
  bool compute(size_t rank) {
    Rank& state = ranks_[rank];
    const std::vector<Action>& actions = list(rank);
    while (state.next < actions.size() && is_transfer(actions[state.next].kind)) ++state.next;
    if (state.next == actions.size()) return false;
    if (blocking_ && state.batch_begin < state.next) return false;
    const Action& action = actions[state.next];
    const double ready = input_ready(action);
    if (ready == kUnknown) return false;
    const double start = std::max({state.compute_end, ready, blocking_ ? state.comm_end : 0});
    state.compute_end = start + costs_.of(action.kind);
    result_.times[rank][state.next++] = {start, state.compute_end};
    if (action.kind == ActionKind::forward || gives_input_gradient(action.kind)) {
      value_of(action).produced = state.compute_end;
      const int to = action.stage + (action.kind == ActionKind::forward ? 1 : -1);
      if (!transfers_listed_ && to >= 0 && to < schedule_.stages()) wake(schedule_.rank_of(to));
    }
    return true;
  }

  // Posts the next batch of a rank, or completes it; false if neither is possible.
  bool communicate(size_t rank) {
    Rank& state = ranks_[rank];
    const std::vector<Action>& actions = list(rank);
    if (state.batch_begin == actions.size() || state.batch_begin > state.next) return false;
    if (!std::exchange(state.posted, true)) post(rank);
    double end = 0;
    for (size_t i = state.batch_begin; i < state.batch_end; ++i) {
      const double arrived = value_of(actions[i]).arrived;
      result_.times[rank][i] = {arrived - costs_.comm, arrived};
      end = std::max(end, arrived);
    }
    if (end == kUnknown) return false;
    state.comm_end = end;
    find_batch(rank, state.batch_end);
    return true;
  }

  void post(size_t rank) {
    const Rank& state = ranks_[rank];
    const double computed = state.batch_after ? result_.times[rank][*state.batch_after].end : 0;
    const double now = std::max(computed, state.comm_end);
    for (size_t i = state.batch_begin; i < state.batch_end; ++i) {
      const Action& action = list(rank)[i];
      Value& value = value_of(action);
      (is_send(action.kind) ? value.sent : value.awaited) = now;
      value.arrived = std::max(value.sent, value.awaited) + costs_.comm;  // unknown until both ends are posted
      if (value.arrived != kUnknown) wake(schedule_.rank_of(peer_stage(action)));
    }
  }

  // Returns the other end of a transfer.
  static Action counterpart(const Action& transfer) {
    Action other = transfer;
    other.stage = peer_stage(transfer);
    other.joined = false;
    switch (transfer.kind) {
      case ActionKind::send_activation: other.kind = ActionKind::recv_activation; break;
      case ActionKind::recv_activation: other.kind = ActionKind::send_activation; break;
      case ActionKind::send_gradient: other.kind = ActionKind::recv_gradient; break;
      default: other.kind = ActionKind::send_gradient;
    }
    return other;
  }

  void note_stuck(size_t rank) {
    const Rank& state = ranks_[rank];
    const std::vector<Action>& actions = list(rank);
    Wait wait;
    wait.rank = static_cast<int>(rank);
    wait.index = state.next;
    if (state.posted) {
      wait.index = state.batch_begin;
      while (value_of(actions[wait.index]).arrived != kUnknown) ++wait.index;
      wait.awaited = counterpart(actions[wait.index]);
    } else if (state.next < actions.size()) {
      wait.awaited = *producer_of(schedule_, actions[wait.index]);
    } else {
      return;
    }
    wait.awaited_rank = schedule_.rank_of(wait.awaited.stage);
    result_.stuck.push_back(wait);
  }

  const Schedule& schedule_;
  const ScheduleCosts costs_;
  const bool blocking_;
  const bool transfers_listed_;
  std::vector<Rank> ranks_;
  std::vector<Value> values_[2];  // activations, gradients; by schedule_.slot
  std::deque<int> awake_;
  Walk result_;
};

}  // namespace

double ScheduleCosts::of(ActionKind kind) const {
  switch (kind) {
    case ActionKind::forward: return forward;
    case ActionKind::backward: return backward + weight;
    case ActionKind::input_grad: return backward;
    case ActionKind::weight_grad: return weight;
    case ActionKind::reduce_gradients: return 0;  // only starts the reduction
    default: return comm;
  }
}

Walk walk(const Schedule& schedule, const ScheduleCosts& costs, bool blocking) {
  return Machine(schedule, costs, blocking).run();
}

}  // namespace concord
