// The leader's part of JobRun.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/launch/job/job_run.h"

namespace concord {
namespace {

using Kind = JobMessage::Kind;
using Seconds = std::chrono::duration<double>;

// When a connection has ended, the launcher is dead and the kernel has killed its ranks; or it has noticed the same.
constexpr Seconds kFenceAfterEnd{1};
constexpr Seconds kKilling{15};  // ranks that do not die are reported after 10 s (attempt.h)
constexpr std::chrono::seconds kSayWaiting{5};
constexpr int kMaxNode = 1 << 15;

}  // namespace

// Continues the job that the leader before this one has recorded, if there was one.
void JobRun::begin_to_lead() {
  if (store_->elects()) {
    say_(fmt::format("concord launch: this launcher, of machine {}, leads the job from now on, at {}:{}", node_,
                     own_.address, own_.port));
  }
  leads_ = has_joined_ = true;
  const Membership before = store_->membership();
  if (before.attempt >= 0) job_ = before.job;
  names_ = before.who;
  names_[node_] = own_.who;
  launchers_[node_] = own_.launcher;
  node_ranks_[node_] = options_.node;
  settings_ = {.slots = std::vector<int>(static_cast<size_t>(options_.nnodes), options_.nproc),
               .worlds = options_.worlds,
               .colocated_ranks = options_.colocated_ranks,
               .max_restarts = options_.max_restarts,
               .leader = node_};
  state_ = first_state(settings_, before.attempt);
  lead({.kind = JobEvent::Kind::joined,
        .node = node_,
        .last_attempt = member_.attempt,
        .saved_step = saved_step_,
        .kept_step = kept_step_});
}

// Another launcher may hold the lease by now: this one is a member like the others.
void JobRun::step_down() {
  leads_ = is_deposed_ = false;
  for (const std::map<int, int>* each : {&peers_, &spares_}) {
    for (const auto& [node, peer] : *each) listener_->drop(peer);
  }
  peers_.clear();
  spares_.clear();
  launchers_.clear();
  node_ranks_.clear();
  fences_.clear();
  events_.clear();
  waits_since_.reset();
  stops_since_.reset();
  cause_.clear();
  const std::string problem = store_->problem();
  lose_leader("this launcher no longer leads the job: " + (problem.empty() ? "its lease has expired" : problem));
}

void JobRun::on_listener_message(const JobLink::Received& received) {
  const auto known = std::ranges::find_if(peers_, [&](const auto& each) { return each.second == received.peer; });
  if (known == peers_.end()) {
    const auto spare = std::ranges::find_if(spares_, [&](const auto& each) { return each.second == received.peer; });
    if (spare != spares_.end()) return on_spare_machine_message(spare->first, received);
    if (received.message && received.message->kind == Kind::hello) on_hello(received.peer, hello_of(*received.message));
    return;
  }
  const int node = known->first;
  if (received.message) return on_member_message(node, *received.message);
  peers_.erase(known);
  if (state_.phase == JobPhase::over) return;
  const Seconds fence = received.was_silent ? kFenceAfterSilence : kFenceAfterEnd;
  fences_[node] = Clock::now() + std::chrono::duration_cast<Clock::duration>(fence);
  cause_ = fmt::format("{} is lost: {}", name_of(node), received.why);
  say_(fmt::format("concord launch: {}", cause_));
  lead({.kind = JobEvent::Kind::lost, .node = node});
}

void JobRun::on_hello(int peer, JobHello hello) {
  const bool is_late = has_lost_its_place(hello);
  if (is_late) hello.node = free_spare_number();
  if (const std::string why = rejection(hello); !why.empty()) {
    listener_->send(peer, {.kind = Kind::refused, .text = why});
    return listener_->drop(peer);
  }
  const int node = static_cast<int>(hello.node);
  const bool is_spare = node >= options_.nnodes;
  names_[node] = hello.who;
  adopt_job(node, hello);
  (is_spare ? spares_ : peers_)[node] = peer;
  launchers_[node] = hello.launcher;
  node_ranks_[node] = hello.node_rank;
  const std::vector<int64_t> place = is_late ? std::vector<int64_t>{node} : std::vector<int64_t>{};
  listener_->send(peer, {.kind = Kind::welcome, .numbers = place, .text = job_});
  if (is_spare || state_.policy.attempts > 0) {
    say_(fmt::format("concord launch: {}{} is here", is_spare ? "the spare " : "", name_of(node)));
  }
  if (is_spare) return;
  lead({.kind = JobEvent::Kind::joined,
        .node = node,
        .last_attempt = static_cast<int>(hello.last_attempt),
        .saved_step = hello.saved_step,
        .kept_step = hello.kept_step});
}

// Returns true if another launcher has replaced it, or has its number as a spare. A launcher that reconnects keeps its
// place.
bool JobRun::has_lost_its_place(const JobHello& hello) const {
  return std::ranges::any_of(launchers_, [&](const auto& each) {
    const auto [node, launcher] = each;
    const bool is_here = node == node_ || peers_.contains(node) || spares_.contains(node);
    return is_here && node == hello.node && node_ranks_.at(node) != node && launcher != hello.launcher;
  });
}

int JobRun::free_spare_number() const {
  int number = options_.nnodes;
  while (spares_.contains(number)) ++number;
  return number;
}

// A launcher that has run an attempt when this one has started none belongs to a job that has lost its leader: this one
// leads it from now on.
void JobRun::adopt_job(int node, const JobHello& hello) {
  const bool is_later = state_.phase == JobPhase::gathering && hello.last_attempt >= state_.policy.attempts;
  if (!is_later || hello.job == job_) return;
  job_ = hello.job;
  say_(
      fmt::format("concord launch: continuing the job of {}, after attempt {}", name_of(node), hello.last_attempt + 1));
  for (const auto& [other, peer] : peers_) listener_->send(peer, {.kind = Kind::welcome, .text = job_});
}

std::string JobRun::rejection(const JobHello& hello) const {
  const int64_t node = hello.node;
  const auto differs = [&](const char* name, int64_t given, int64_t own) {
    return fmt::format("{} is {} on machine {} and {} on machine {}; start all launchers with the same settings", name,
                       given, node, own, node_);
  };
  if (hello.nnodes != options_.nnodes) return differs("--nnodes", hello.nnodes, options_.nnodes);
  if (hello.nproc != options_.nproc) return differs("--nproc", hello.nproc, options_.nproc);
  if (hello.max_restarts != options_.max_restarts) {
    return differs("--max_restarts", hello.max_restarts, options_.max_restarts);
  }
  // The ranks of a machine that does not expect fewer ranks would train a different batch.
  if (hello.worlds != static_cast<int64_t>(options_.worlds.size())) {
    return differs("the number of layouts with fewer ranks (--allow_fewer_ranks)", hello.worlds - 1,
                   static_cast<int64_t>(options_.worlds.size()) - 1);
  }
  const bool is_possible = node >= 0 && node <= kMaxNode && hello.last_attempt < INT32_MAX;
  if (!is_possible) return fmt::format("there is no machine {}", node);
  const int index = static_cast<int>(node);
  if (peers_.contains(index) || spares_.contains(index) || index == node_) {
    return fmt::format("two launchers have --node_rank {}: {}, and {}", node, names_.at(index), hello.who);
  }
  return state_.phase == JobPhase::over ? "the job is over" : "";
}

void JobRun::on_spare_machine_message(int node, const JobLink::Received& received) {
  const bool has_gone = !received.message || received.message->kind == Kind::left;
  if (!has_gone) return;
  spares_.erase(node);
  say_(fmt::format("concord launch: the spare {} is gone", name_of(node)));
}

// For the leader a spare machine is the lost one, started again.
void JobRun::replace_lost_machines() {
  for (int node = 0; node < options_.nnodes && !spares_.empty(); ++node) {
    const NodeView& view = state_.nodes[static_cast<size_t>(node)];
    // A launcher that has not found this leader yet may come until the end of its fence.
    const bool is_known = launchers_.contains(node) || (state_.policy.attempts > 0 && !view.fenced);
    const bool is_lost = is_known && view.phase == NodePhase::absent && node != node_;
    if (!is_lost || peers_.contains(node) || state_.phase == JobPhase::over) continue;
    const auto [number, peer] = *spares_.begin();
    spares_.erase(spares_.begin());
    say_(fmt::format("concord launch: the spare {} takes the place of {}", name_of(number), name_of(node)));
    peers_[node] = peer;
    names_[node] = names_[number];
    node_ranks_[node] = node_ranks_[number];
    launchers_[node] = launchers_[number];
    launchers_.erase(number);
    listener_->send(peer, {.kind = Kind::welcome, .numbers = {node}, .text = job_});
    lead({.kind = JobEvent::Kind::joined, .node = node});
  }
}

void JobRun::on_member_message(int node, const JobMessage& message) {
  const std::vector<int64_t>& n = message.numbers;
  if (message.kind == Kind::alive && n.size() >= 2) {
    lead({.kind = JobEvent::Kind::progress, .node = node, .saved_step = n[0], .kept_step = n[1]});
  } else if (message.kind == Kind::failed) {
    const NodeEnd end{.has_failed = true, .failed_slot = static_cast<int>(n[1]), .exit_code = static_cast<int>(n[2])};
    if (!state_.has_trouble) {
      cause_ = fmt::format("rank {} on {} failed: {}", n[3], name_of(node), message.text);
      if (node != node_) say_(fmt::format("concord launch: {}", cause_));
    }
    lead({.kind = JobEvent::Kind::failed, .node = node, .attempt = static_cast<int>(n[0]), .end = end});
  } else if (message.kind == Kind::ended) {
    lead({.kind = JobEvent::Kind::ended, .node = node, .attempt = static_cast<int>(n[0]), .end = node_end(message)});
  } else if (message.kind == Kind::left) {
    cause_ = fmt::format("{} was asked to stop", name_of(node));
    lead({.kind = JobEvent::Kind::left, .node = node, .signal = static_cast<int>(n[0])});
  }
}

// The leader's own member reports to it while another event is being processed: its events wait for their turn.
void JobRun::lead(const JobEvent& event) {
  if (is_deposed_) return;
  events_.push_back(event);
  if (is_leading_) return;
  is_leading_ = true;
  while (!events_.empty()) {
    const JobEvent next = events_.front();
    events_.pop_front();
    const JobState before = state_;
    JobStep step = next_step(job_rules(), settings_, std::move(state_), next);
    state_ = std::move(step.state);
    const bool is_new_attempt = state_.phase == JobPhase::running && before.phase != JobPhase::running;
    is_deposed_ = is_new_attempt && !record_attempt();
    if (is_deposed_) break;
    report_changes(before, next);
    if (is_new_attempt) report_attempt();
    for (const JobAction& action : step.actions) carry_out(action);
  }
  is_leading_ = false;
}

// The launcher that leads next must know of an attempt before any rank of it starts.
bool JobRun::record_attempt() {
  Membership membership{.attempt = state_.policy.attempts, .job = job_, .who = {}};
  for (int node = 0; node < options_.nnodes; ++node) {
    if (state_.nodes[static_cast<size_t>(node)].phase != NodePhase::absent) membership.who[node] = names_.at(node);
  }
  return store_->record(membership);
}

void JobRun::report_changes(const JobState& before, const JobEvent& event) {
  if (before.phase == JobPhase::running && state_.phase != JobPhase::running && cause_.empty()) {
    cause_ = fmt::format("the ranks on {} have exited", name_of(event.node));
  }
  if (state_.policy.attempts > before.policy.attempts && is_waiting_for_nodes(state_)) {
    say_(fmt::format("concord launch: waiting up to {:g} s for {} to be started again", options_.rejoin_timeout.count(),
                     fmt::join(absent_nodes(), ", ")));
  }
  if (state_.phase != JobPhase::over || before.phase == JobPhase::over) return;
  for (const auto& [node, peer] : spares_) {
    listener_->send(peer, {.kind = Kind::finish, .numbers = {state_.exit_code}, .text = cause_});
  }
  if (before.phase != JobPhase::gathering || state_.asked_signal != 0) return;
  const std::vector<std::string> missing = absent_nodes();
  cause_ = missing.empty() ? "the ranks that are left cannot train this job"
                           : fmt::format("{} did not come", fmt::join(missing, ", "));
  say_(fmt::format("concord launch: {}; the job ends", cause_));
}

void JobRun::report_attempt() {
  store_port_.emplace();
  cause_.clear();
  const int world = state_.assignment.world, all = options_.worlds.front();
  const std::string ranks = world == all ? "" : fmt::format(", with {} of {} ranks", world, all);
  if (state_.policy.attempts > 0) {
    const int failures = state_.policy.failures;  // 0 after failures that another leader has counted
    const std::string what =
        failures > 0 ? fmt::format("restart {} of {}", failures, options_.max_restarts) : "continuing";
    say_(fmt::format("concord launch: {} (attempt {}{})", what, state_.policy.attempts + 1, ranks));
  } else if (!ranks.empty()) {
    say_(fmt::format("concord launch: starting{}", ranks.substr(1)));
  }
}

void JobRun::carry_out(const JobAction& action) {
  const bool is_own = action.node == node_;
  const auto send = [&](const JobMessage& message) {
    if (const auto peer = peers_.find(action.node); peer != peers_.end()) listener_->send(peer->second, message);
  };
  switch (action.kind) {
    case JobAction::Kind::start:
      if (!is_own) return send(start_message(action));
      start_ = AttemptStart{.attempt = action.attempt,
                            .node = node_,
                            .store_address = own_.address,
                            .store_port = store_port_->port(),
                            .world = state_.assignment.world,
                            .share = state_.assignment.nodes[static_cast<size_t>(node_)],
                            .job = job_};
      return signal({.event = MemberEvent::start, .attempt = action.attempt});
    case JobAction::Kind::stop:
      if (!is_own) return send({.kind = Kind::stop, .numbers = {action.attempt, action.gently}, .text = cause_});
      order_ = action.gently ? AttemptOrder::wait : order_;
      return signal({.event = MemberEvent::stop, .attempt = action.attempt});
    case JobAction::Kind::finish:
      if (!is_own) return send({.kind = Kind::finish, .numbers = {action.exit_code}, .text = cause_});
      return signal({.event = MemberEvent::finish, .exit_code = action.exit_code});
    case JobAction::Kind::drop:
      if (const auto peer = peers_.find(action.node); peer != peers_.end()) {
        say_(fmt::format("concord launch: {} did not stop its ranks in time; continuing without it",
                         name_of(action.node)));
        listener_->drop(peer->second);
        peers_.erase(peer);
      }
      fences_[action.node] = Clock::now() + std::chrono::duration_cast<Clock::duration>(kFenceAfterSilence);
      return;
  }
}

JobMessage JobRun::start_message(const JobAction& action) const {
  const NodeShare& share = state_.assignment.nodes[static_cast<size_t>(action.node)];
  JobMessage message{.kind = Kind::start,
                     .numbers = {action.attempt, store_port_->port(), state_.assignment.world, share.first_rank},
                     .text = own_.address};
  for (const int slot : share.slots) message.numbers.push_back(slot);
  return message;
}

void JobRun::keep_time() {
  const Clock::time_point now = Clock::now();
  const auto has_passed = [&](std::optional<Clock::time_point>* since, bool is_on, Seconds limit) {
    if (!is_on) since->reset();
    if (is_on && !*since) *since = now;
    if (!is_on || now - **since < limit) return false;
    since->reset();
    return true;
  };
  // At the start the others may simply be slower; a user who has forgotten one is told.
  if (!has_said_waiting_ && state_.policy.attempts == 0 && waits_since_ && now - *waits_since_ > kSayWaiting) {
    has_said_waiting_ = true;
    say_(fmt::format("concord launch: waiting up to {:g} s for {}", options_.join_timeout.count(),
                     fmt::join(absent_nodes(), ", ")));
  }
  const Seconds patience = state_.policy.attempts == 0 ? options_.join_timeout : options_.rejoin_timeout;
  if (has_passed(&waits_since_, is_waiting_for_nodes(state_), patience)) lead({.kind = JobEvent::Kind::waited});
  if (has_passed(&stops_since_, state_.phase == JobPhase::stopping, options_.grace + kKilling)) {
    lead({.kind = JobEvent::Kind::stop_overdue});
  }
  for (size_t node = 0; node < state_.nodes.size(); ++node) {  // by the leader before this one
    if (!state_.nodes[node].fenced) continue;
    fences_.try_emplace(static_cast<int>(node), now + std::chrono::duration_cast<Clock::duration>(kFenceAfterSilence));
  }
  for (auto fence = fences_.begin(); fence != fences_.end();) {
    if (now < fence->second) {
      ++fence;
      continue;
    }
    const int node = fence->first;
    fence = fences_.erase(fence);
    lead({.kind = JobEvent::Kind::fence_over, .node = node});
  }
}

std::vector<std::string> JobRun::absent_nodes() const {
  std::vector<std::string> names;
  for (int node = 0; node < options_.nnodes; ++node) {
    if (state_.nodes[static_cast<size_t>(node)].phase == NodePhase::absent) names.push_back(name_of(node));
  }
  return names;
}

std::string JobRun::name_of(int node) const {
  const auto name = names_.find(node);
  return name == names_.end() ? fmt::format("machine {}", node) : fmt::format("machine {} ({})", node, name->second);
}

}  // namespace concord
