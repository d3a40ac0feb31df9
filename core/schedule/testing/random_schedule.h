// For tests: legal schedules that no generator creates, and a second, naive check of whether a schedule can run.
#pragma once

#include <algorithm>
#include <iterator>
#include <random>
#include <set>
#include <string>

#include "core/schedule/schedule.h"

namespace concord {

inline int uniform(std::mt19937& random, int least, int most) {
  return std::uniform_int_distribution<int>(least, most)(random);
}

// Returns a legal schedule of computations: a random rank runs a random action that it can run, until all are done.
// Stages are on random ranks, vpp on each.
inline Schedule random_schedule(std::mt19937& random, int pp, int vpp, int microbatches, bool split) {
  Schedule schedule{.kind = "random",
                    .pp = pp,
                    .vpp = vpp,
                    .microbatches = microbatches,
                    .rank_of_stage = {},
                    .ranks = {},
                    .activation_limit = {}};
  for (int stage = 0; stage < pp * vpp; ++stage) schedule.rank_of_stage.push_back(stage % pp);
  std::shuffle(schedule.rank_of_stage.begin(), schedule.rank_of_stage.end(), random);
  schedule.ranks.resize(static_cast<size_t>(pp));
  schedule.activation_limit.assign(static_cast<size_t>(pp), int64_t{vpp} * microbatches);
  std::vector<Action> ready;
  for (int i = 0; i < microbatches; ++i) ready.push_back({.stage = 0, .microbatch = i});
  while (!ready.empty()) {
    std::swap(ready[static_cast<size_t>(uniform(random, 0, static_cast<int>(ready.size()) - 1))], ready.back());
    const Action action = ready.back();
    ready.pop_back();
    schedule.ranks[static_cast<size_t>(schedule.rank_of(action.stage))].push_back(action);
    const auto backward = [&](int stage) {
      const bool halves = split && uniform(random, 0, 1) == 1;
      ready.push_back({.stage = stage,
                       .microbatch = action.microbatch,
                       .kind = halves ? ActionKind::input_grad : ActionKind::backward});
    };
    if (action.kind == ActionKind::forward) {
      if (action.stage + 1 < pp * vpp)
        ready.push_back({.stage = action.stage + 1, .microbatch = action.microbatch});
      else
        backward(action.stage);
    } else if (action.kind != ActionKind::weight_grad) {
      if (action.stage > 0) backward(action.stage - 1);
      if (action.kind == ActionKind::input_grad) {
        ready.push_back({.stage = action.stage, .microbatch = action.microbatch, .kind = ActionKind::weight_grad});
      }
    }
  }
  return schedule;
}

// Walks a complete schedule with transfers, in which sends block and nothing overlaps with them. Uses sets of texts,
// retries every rank until none moves, and shares no code with the checker.
class NaiveWalk {
 public:
  explicit NaiveWalk(const Schedule& schedule)
      : schedule_(schedule),
        at_(schedule.ranks.size(), 0),
        posted_(at_.size(), false),
        has_(at_.size()),
        open_(at_.size()) {}

  // Returns whether all ranks reach the end of their lists.
  bool ends() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < at_.size(); ++rank) {
        if (at_[rank] == schedule_.ranks[rank].size()) continue;
        moved |= is_transfer(current(rank).kind) ? transfer(rank) : compute(rank);
      }
    }
    for (size_t rank = 0; rank < at_.size(); ++rank) {
      if (at_[rank] < schedule_.ranks[rank].size()) return false;
    }
    return true;
  }

 private:
  using Texts = std::set<std::string>;

  const Action& current(size_t rank) const { return schedule_.ranks[rank][at_[rank]]; }

  static std::string value(char what, int stage, int microbatch) {
    return std::string(1, what).append(std::to_string(stage)).append(".").append(std::to_string(microbatch));
  }

  size_t batch_end(size_t rank) const {
    size_t end = at_[rank] + 1;
    while (end < schedule_.ranks[rank].size() && schedule_.ranks[rank][end].joined) ++end;
    return end;
  }

  // Returns a label that is equal on both ends: "0>1 F2.0".
  std::string label(int rank, const Action& action) const {
    const int peer = schedule_.rank_of(peer_stage(action));
    const bool send = is_send(action.kind);
    const bool forward = action.kind == ActionKind::send_activation || action.kind == ActionKind::recv_activation;
    const std::string carried = value(forward ? 'F' : 'G', send ? action.stage : peer_stage(action), action.microbatch);
    return std::to_string(send ? rank : peer)
        .append(">")
        .append(std::to_string(send ? peer : rank))
        .append(" ")
        .append(carried);
  }

  bool transfer(size_t rank) {
    bool moved = false;
    if (!posted_[rank]) {
      for (size_t i = at_[rank]; i < batch_end(rank); ++i)
        open_[rank].insert(label(static_cast<int>(rank), schedule_.ranks[rank][i]));
      posted_[rank] = moved = true;
    }
    for (size_t peer = 0; peer < at_.size(); ++peer) moved |= peer != rank && meet(rank, peer);
    if (!open_[rank].empty()) return moved;
    at_[rank] = batch_end(rank);
    posted_[rank] = false;
    return true;
  }

  // Transfers what both ranks have posted.
  bool meet(size_t rank, size_t peer) {
    Texts common;
    std::set_intersection(open_[rank].begin(), open_[rank].end(), open_[peer].begin(), open_[peer].end(),
                          std::inserter(common, common.end()));
    for (const std::string& transfer : common) {
      open_[rank].erase(transfer);
      open_[peer].erase(transfer);
      const std::string carried = transfer.substr(transfer.find(' ') + 1);
      has_[rank].insert(carried);
      has_[peer].insert(carried);
    }
    return !common.empty();
  }

  bool compute(size_t rank) {
    const Action& action = current(rank);
    const auto there = [&](char what, int stage) {
      return has_[rank].count(value(what, stage, action.microbatch)) > 0;
    };
    const bool last = action.stage == schedule_.stages() - 1;
    if (action.kind == ActionKind::forward && action.stage > 0 && !there('F', action.stage - 1)) return false;
    if (gives_input_gradient(action.kind) && !(there('F', action.stage) && (last || there('G', action.stage + 1))))
      return false;
    if (action.kind == ActionKind::forward) has_[rank].insert(value('F', action.stage, action.microbatch));
    if (gives_input_gradient(action.kind)) has_[rank].insert(value('G', action.stage, action.microbatch));
    ++at_[rank];
    return true;
  }

  const Schedule& schedule_;
  std::vector<size_t> at_;
  std::vector<bool> posted_;
  std::vector<Texts> has_;   // computed on or received by each rank: "F2.0" an output, "G2.0" the gradient of an input
  std::vector<Texts> open_;  // transfers of the current batch whose peer has not posted them yet
};

inline bool naively_runs(const Schedule& schedule) { return NaiveWalk(schedule).ends(); }

}  // namespace concord
