#include "core/schedule/check.h"

#include <fmt/core.h>

#include <map>
#include <utility>

#include "core/base/config_error.h"
#include "core/schedule/walk.h"

namespace concord {
namespace {

using Fault = std::optional<ScheduleFault>;

std::string text_of(int32_t stage, ActionKind kind, int32_t microbatch) {
  return to_string(Action{.stage = stage, .microbatch = microbatch, .kind = kind});
}

// The rules that one rank's list can violate by itself, and completeness, which is checked at the end.
class LocalRules {
 public:
  explicit LocalRules(const Schedule& schedule)
      : schedule_(schedule),
        transfers_listed_(has_transfers(schedule)),
        forward_only_(is_forward_only(schedule)),
        seen_(schedule.slots(), 0),
        weight_gradients_(schedule.rank_of_stage.size(), 0),
        reduced_(schedule.rank_of_stage.size(), false) {}

  Fault check_rank(int rank) {
    const std::vector<Action>& actions = schedule_.ranks[static_cast<size_t>(rank)];
    int64_t held = 0;
    for (size_t i = 0; i < actions.size(); ++i) {
      std::string what = broken_place(actions[i], rank, i == 0 ? nullptr : &actions[i - 1]);
      if (what.empty()) what = broken_order(actions[i]);
      if (what.empty()) what = broken_memory(actions[i], rank, &held);
      if (!what.empty()) return ScheduleFault{rank, i, what};
      note(actions[i]);
    }
    return std::nullopt;
  }

  Fault check_complete() const {
    for (int stage = 0; stage < schedule_.stages(); ++stage) {
      for (int microbatch = 0; microbatch < schedule_.microbatches; ++microbatch) {
        const std::string missing = missing_action(stage, microbatch);
        if (missing.empty()) continue;
        const int rank = schedule_.rank_of(stage);
        return ScheduleFault{
            rank, schedule_.ranks[static_cast<size_t>(rank)].size(),
            fmt::format("micro-batch {} is incomplete: rank {} never runs {}", microbatch, rank, missing)};
      }
    }
    return std::nullopt;
  }

 private:
  bool seen(int32_t stage, ActionKind kind, int32_t microbatch) const {
    const Action action{.stage = stage, .microbatch = microbatch, .kind = kind};
    return (seen_[schedule_.slot(action)] >> static_cast<int>(kind)) & 1;
  }
  bool seen_input_gradient(int32_t stage, int32_t microbatch) const {
    return seen(stage, ActionKind::backward, microbatch) || seen(stage, ActionKind::input_grad, microbatch);
  }
  bool last(int32_t stage) const { return stage == schedule_.stages() - 1; }

  void note(const Action& action) {
    if (action.kind == ActionKind::reduce_gradients)
      reduced_[static_cast<size_t>(action.stage)] = true;
    else
      seen_[schedule_.slot(action)] |= static_cast<uint16_t>(1u << static_cast<int>(action.kind));
    if (frees_activations(action.kind)) ++weight_gradients_[static_cast<size_t>(action.stage)];
  }

  std::string broken_place(const Action& action, int rank, const Action* before) const {
    if (action.stage < 0 || action.stage >= schedule_.stages()) {
      return fmt::format("unknown stage {}; stages are 0 to {}", action.stage, schedule_.stages() - 1);
    }
    if (action.microbatch < 0 || action.microbatch >= schedule_.microbatches) {
      return fmt::format("unknown micro-batch {}; micro-batches are 0 to {}", action.microbatch,
                         schedule_.microbatches - 1);
    }
    if (schedule_.rank_of(action.stage) != rank) {
      return fmt::format("stage {} is on rank {}, not on rank {}", action.stage, schedule_.rank_of(action.stage), rank);
    }
    const bool twice = action.kind == ActionKind::reduce_gradients ? reduced_[static_cast<size_t>(action.stage)]
                                                                   : seen(action.stage, action.kind, action.microbatch);
    if (twice) return "duplicate action";
    if (action.joined && (!is_transfer(action.kind) || before == nullptr || !is_transfer(before->kind))) {
      return "only a transfer directly after a transfer can join its batch";
    }
    return {};
  }

  std::string broken_order(const Action& action) const {
    switch (action.kind) {
      case ActionKind::forward: return needs_value(action, ActionKind::recv_activation);
      case ActionKind::backward:
      case ActionKind::input_grad: return broken_backward(action);
      case ActionKind::weight_grad: return needs(action.stage, ActionKind::input_grad, action.microbatch);
      case ActionKind::reduce_gradients: return broken_reduction(action);
      default: return broken_transfer(action);
    }
  }

  std::string needs(int32_t stage, ActionKind kind, int32_t microbatch) const {
    if (seen(stage, kind, microbatch)) return {};
    return fmt::format("it needs {}, which does not precede it", text_of(stage, kind, microbatch));
  }

  // Requires the value from the adjacent stage: computed on this rank, or received by |receive|.
  std::string needs_value(const Action& action, ActionKind receive) const {
    const std::optional<Action> producer = producer_of(schedule_, action);
    if (!producer) return {};
    if (!schedule_.on_one_rank(action.stage, producer->stage)) {
      return transfers_listed_ ? needs(action.stage, receive, action.microbatch) : std::string();
    }
    if (producer->kind == ActionKind::forward) return needs(producer->stage, ActionKind::forward, producer->microbatch);
    return needs_gradient(producer->stage, producer->microbatch);
  }

  std::string needs_gradient(int32_t stage, int32_t microbatch) const {
    if (seen_input_gradient(stage, microbatch)) return {};
    return fmt::format("it needs {} or {}, which do not precede it", text_of(stage, ActionKind::backward, microbatch),
                       text_of(stage, ActionKind::input_grad, microbatch));
  }

  std::string broken_backward(const Action& action) const {
    if (seen_input_gradient(action.stage, action.microbatch)) {
      return fmt::format(
          "the backward of micro-batch {} through stage {} was already done; it is either {}, or {} and {}",
          action.microbatch, action.stage, text_of(action.stage, ActionKind::backward, action.microbatch),
          text_of(action.stage, ActionKind::input_grad, action.microbatch),
          text_of(action.stage, ActionKind::weight_grad, action.microbatch));
    }
    const std::string forward = needs(action.stage, ActionKind::forward, action.microbatch);
    return forward.empty() ? needs_value(action, ActionKind::recv_gradient) : forward;
  }

  std::string broken_transfer(const Action& action) const {
    const int32_t peer = peer_stage(action);
    if (peer < 0 || peer >= schedule_.stages()) {
      return fmt::format("stage {} is at the end of the model: there is no stage {} to exchange this with",
                         action.stage, peer);
    }
    if (schedule_.on_one_rank(action.stage, peer)) {
      return fmt::format("stages {} and {} are both on rank {}: there is nothing to transfer", action.stage, peer,
                         schedule_.rank_of(peer));
    }
    if (action.kind == ActionKind::send_activation) return needs(action.stage, ActionKind::forward, action.microbatch);
    if (action.kind == ActionKind::send_gradient) return needs_gradient(action.stage, action.microbatch);
    return {};
  }

  std::string broken_reduction(const Action& action) const {
    const int done = weight_gradients_[static_cast<size_t>(action.stage)];
    if (done == schedule_.microbatches) return {};
    return fmt::format("stage {} has the weight gradients of only {} of {} micro-batches before it; it needs all",
                       action.stage, done, schedule_.microbatches);
  }

  std::string broken_memory(const Action& action, int rank, int64_t* held) const {
    if (frees_activations(action.kind)) --*held;
    if (action.kind != ActionKind::forward) return {};
    const int64_t limit = schedule_.activation_limit[static_cast<size_t>(rank)];
    const int64_t now = forward_only_ ? 1 : ++*held;
    if (now <= limit) return {};
    return fmt::format("rank {} would hold the activations of {} forwards; its limit is {}", rank, now, limit);
  }

  std::string missing_action(int stage, int microbatch) const {
    const auto missing = [&](ActionKind kind) { return !seen(stage, kind, microbatch); };
    const auto text = [&](ActionKind kind) { return text_of(stage, kind, microbatch); };
    if (missing(ActionKind::forward)) return text(ActionKind::forward);
    if (!forward_only_) {
      if (!seen_input_gradient(stage, microbatch)) return text(ActionKind::backward);
      if (missing(ActionKind::backward) && missing(ActionKind::weight_grad)) return text(ActionKind::weight_grad);
    }
    if (!transfers_listed_) return {};
    const bool sends_on = !last(stage) && !schedule_.on_one_rank(stage, stage + 1);
    const bool sends_back = stage > 0 && !schedule_.on_one_rank(stage, stage - 1);
    if (sends_on && missing(ActionKind::send_activation)) return text(ActionKind::send_activation);
    if (sends_back && missing(ActionKind::recv_activation)) return text(ActionKind::recv_activation);
    if (forward_only_) return {};
    if (sends_on && missing(ActionKind::recv_gradient)) return text(ActionKind::recv_gradient);
    if (sends_back && missing(ActionKind::send_gradient)) return text(ActionKind::send_gradient);
    return {};
  }

  const Schedule& schedule_;
  const bool transfers_listed_;
  const bool forward_only_;
  std::vector<uint16_t> seen_;  // one bit per kind, by schedule_.slot
  std::vector<int> weight_gradients_;
  std::vector<bool> reduced_;
};

// One direction between two ranks.
struct Channel {
  std::vector<const Action*> sends;
  std::vector<std::pair<size_t, const Action*>> recvs;  // with their index in the receiver's list
};

bool same_value(const Action& send, const Action& recv) {
  const bool activations = send.kind == ActionKind::send_activation && recv.kind == ActionKind::recv_activation;
  const bool gradients = send.kind == ActionKind::send_gradient && recv.kind == ActionKind::recv_gradient;
  return (activations || gradients) && peer_stage(send) == recv.stage && send.microbatch == recv.microbatch;
}

Fault check_channels(const Schedule& schedule) {
  std::map<std::pair<int, int>, Channel>
      channels;  // (receiver, sender), so that the errors of the first rank are found first
  for (int rank = 0; rank < schedule.pp; ++rank) {
    const std::vector<Action>& actions = schedule.ranks[static_cast<size_t>(rank)];
    for (size_t i = 0; i < actions.size(); ++i) {
      if (!is_transfer(actions[i].kind)) continue;
      const int peer = schedule.rank_of(peer_stage(actions[i]));
      if (is_send(actions[i].kind))
        channels[{peer, rank}].sends.push_back(&actions[i]);
      else
        channels[{rank, peer}].recvs.emplace_back(i, &actions[i]);
    }
  }
  for (const auto& [ends, channel] : channels) {
    for (size_t n = 0; n < channel.recvs.size(); ++n) {
      const auto& [index, recv] = channel.recvs[n];
      const std::string sent = n < channel.sends.size() ? to_string(*channel.sends[n]) : "nothing";
      if (n < channel.sends.size() && same_value(*channel.sends[n], *recv)) continue;
      return ScheduleFault{ends.first, index,
                           fmt::format("it is receive {} from rank {}, whose send {} to rank {} is {}; sends and "
                                       "receives between two ranks must be in the same order",
                                       n + 1, ends.second, n + 1, ends.first, sent)};
    }
  }
  return std::nullopt;
}

// Returns the awaited action as listed by its rank, whether or not it splits the backward.
std::string awaited_text(const Schedule& schedule, const Wait& wait) {
  for (const Action& action : schedule.ranks[static_cast<size_t>(wait.awaited_rank)]) {
    const bool gradient = gives_input_gradient(wait.awaited.kind) && gives_input_gradient(action.kind);
    if (action.stage == wait.awaited.stage && action.microbatch == wait.awaited.microbatch &&
        (gradient || action.kind == wait.awaited.kind)) {
      return to_string(action);
    }
  }
  return to_string(wait.awaited);
}

// Follows the chain of waiting ranks until it closes; every stuck rank waits for another stuck rank.
Fault check_progress(const Schedule& schedule) {
  constexpr int kShown = 8;
  const Walk result = walk(schedule, ScheduleCosts{}, /*blocking=*/true);
  if (result.stuck.empty()) return std::nullopt;
  std::map<int, const Wait*> waits;
  for (const Wait& wait : result.stuck) waits[wait.rank] = &wait;
  int rank = result.stuck.front().rank;
  for (size_t i = 0; i < result.stuck.size(); ++i) rank = waits.at(rank)->awaited_rank;  // into the cycle
  int first = rank;
  for (int next = waits.at(rank)->awaited_rank; next != rank; next = waits.at(next)->awaited_rank)
    first = std::min(first, next);
  const Wait* wait = waits.at(first);
  std::string what = "deadlock: ";
  int shown = 0;
  do {
    what += fmt::format("{}rank {} waits in action {} ({}) for {} of rank {}", shown == 0 ? "" : ", ", wait->rank,
                        wait->index + 1, to_string(schedule.ranks[static_cast<size_t>(wait->rank)][wait->index]),
                        awaited_text(schedule, *wait), wait->awaited_rank);
    wait = waits.at(wait->awaited_rank);
  } while (++shown < kShown && wait->rank != first);
  if (wait->rank != first) what += ", and so on";
  return ScheduleFault{first, waits.at(first)->index, what};
}

void check_shape(const Schedule& schedule) {
  const bool sound = schedule.pp >= 1 && schedule.vpp >= 1 && schedule.microbatches >= 1 &&
                     schedule.ranks.size() == static_cast<size_t>(schedule.pp) &&
                     schedule.activation_limit.size() == schedule.ranks.size() &&
                     schedule.rank_of_stage.size() == schedule.ranks.size() * static_cast<size_t>(schedule.vpp);
  if (!sound) {
    throw ConfigError(fmt::format(
        "schedule {} is inconsistent: pp {}, vpp {}, {} micro-batches, but {} lists, {} limits and {} stages",
        schedule.kind, schedule.pp, schedule.vpp, schedule.microbatches, schedule.ranks.size(),
        schedule.activation_limit.size(), schedule.rank_of_stage.size()));
  }
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    if (schedule.rank_of(stage) >= 0 && schedule.rank_of(stage) < schedule.pp) continue;
    throw ConfigError(fmt::format("schedule {}: stage {} is on rank {}; the ranks are 0 to {}", schedule.kind, stage,
                                  schedule.rank_of(stage), schedule.pp - 1));
  }
}

}  // namespace

std::optional<ScheduleFault> find_fault(const Schedule& schedule) {
  check_shape(schedule);
  LocalRules rules(schedule);
  for (int rank = 0; rank < schedule.pp; ++rank) {
    if (const Fault fault = rules.check_rank(rank)) return fault;
  }
  if (const Fault fault = rules.check_complete()) return fault;
  if (const Fault fault = check_channels(schedule)) return fault;
  return check_progress(schedule);
}

void check_schedule(const Schedule& schedule) {
  const std::optional<ScheduleFault> fault = find_fault(schedule);
  if (!fault) return;
  const std::vector<Action>& actions = schedule.ranks[static_cast<size_t>(fault->rank)];
  const std::string action = fault->index < actions.size()
                                 ? fmt::format("action {} ({})", fault->index + 1, to_string(actions[fault->index]))
                                 : "at its end";
  throw ConfigError(fmt::format("schedule {}, rank {}, {}: {}", schedule.kind, fault->rank, action, fault->what));
}

}  // namespace concord
