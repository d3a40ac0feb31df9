// The leader's part of JobRun.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <system_error>

#include "core/launch/job/job_run.h"
#include "core/mesh/store/rendezvous.h"

namespace concord {
namespace {

using Kind = JobMessage::Kind;
using Seconds = std::chrono::duration<double>;

// After the end of a connection the launcher is dead, and the kernel has killed its ranks; or it has seen the same.
constexpr Seconds kFenceAfterEnd{1};
constexpr Seconds kKilling{15};  // ranks that do not die are reported after 10 s (attempt.h)
constexpr std::chrono::seconds kSayWaiting{5};
constexpr std::chrono::milliseconds kInviteEvery{500};
constexpr std::chrono::milliseconds kInvitationTime{100};
constexpr int kMaxNodes = 1 << 15;

}  // namespace

void JobRun::begin_to_lead() {
  leads_ = true;
  settings_ = {.slots = std::vector<int>(static_cast<size_t>(options_.nnodes), options_.nproc),
               .worlds = options_.worlds,
               .together = options_.together,
               .max_restarts = options_.max_restarts,
               .leader = node_};
  state_ = first_state(settings_);
  listener_addresses_[node_] = own_;
}

// It was elected, and goes on with what those who have voted for it know.
void JobRun::take_over() {
  say_(fmt::format("concord launch: this launcher, of machine {}, leads the job from now on, at {}:{}", node_,
                   own_.address, own_.port));
  searches_since_.reset();
  invited_to_.reset();
  begin_to_lead();
  write_leader_file();
  fences_.clear();
  bool has_ended = leader_has_ended_;
  for (const auto& [peer, hello] : votes_) {
    if (hello.roster.electorate.attempt > roster_.electorate.attempt) roster_ = hello.roster;
    has_ended = has_ended && hello.leader_has_ended;
  }
  for (const RosterEntry& voter : roster_.voters) {
    listener_addresses_.try_emplace(voter.node, voter);
    if (!has_ended || voter.launcher != roster_.electorate.now.leader) continue;
    fences_[voter.node] = Clock::now() + std::chrono::duration_cast<Clock::duration>(kFenceAfterEnd);
  }
  lead({.kind = JobEvent::Kind::joined,
        .node = node_,
        .launcher = launcher_,
        .electorate = roster_.electorate,
        .saved_step = saved_step_,
        .kept_step = kept_step_});
  for (const auto& [peer, hello] : std::exchange(votes_, {})) greet(peer, hello);
}

// For launchers that are started anew, which know the first leader's address only. A reader finds all of it or none.
void JobRun::write_leader_file() {
  if (options_.leader_file.empty()) return;
  const std::string written = fmt::format("{}.{}", options_.leader_file, launcher_);
  std::ofstream(written) << own_.port << " " << own_.address << "\n";
  has_written_leader_ = std::rename(written.c_str(), options_.leader_file.c_str()) == 0;
  if (has_written_leader_) return;
  const std::string why = std::generic_category().message(errno);
  std::remove(written.c_str());
  say_(
      fmt::format("concord launch: cannot write {}: {}; launchers that are started again need --master_addr {} "
                  "--master_port {}",
                  options_.leader_file, why, own_.address, own_.port));
}

// The others have elected another leader: this one is a member like them.
void JobRun::hand_over() {
  leads_ = false;
  for (const std::map<int, int>& each : {peers_, spares_}) {
    for (const auto& [node, peer] : each) listener_->drop(peer);
  }
  peers_.clear();
  spares_.clear();
  fences_.clear();
  waits_since_.reset();
  stops_since_.reset();
  invitation_.reset();
  cause_.clear();
  say_(
      "concord launch: the others have elected another launcher to lead the job while this one was cut off or "
      "was started; joining it");
  signal({.event = MemberEvent::leader_lost});
}

// Before the first start of an attempt, and to those who come later.
void JobRun::send_roster() {
  roster_ = {.electorate = state_.electorate, .voters = {}};
  for (const auto& [node, door] : listener_addresses_) {
    if (roster_.electorate.now.contains(door.launcher)) roster_.voters.push_back(door);
  }
  for (const std::map<int, int>& each : {peers_, spares_}) {
    for (const auto& [node, peer] : each) listener_->send(peer, {.kind = Kind::roster, .text = pack(roster_)});
  }
}

// Launchers that do not know this leader: that of machine 0, started again, looks for nobody; one that was cut off may
// lead, too, without a quorum.
void JobRun::invite_others() {
  const Clock::time_point now = Clock::now();
  if (now < next_invitation_ || options_.nnodes == 1 || state_.phase == JobPhase::over) return;
  next_invitation_ = now + kInviteEvery;
  invitation_.reset();
  if (state_.electorate.attempt < 0 || !has_quorum(settings_, state_)) return;
  std::vector<RosterEntry> absent;
  if (own_.address != options_.master_addr || own_.port != options_.master_port) {
    absent.push_back({.port = options_.master_port, .address = options_.master_addr});
  }
  for (const auto& [node, door] : listener_addresses_) {
    const bool is_spare = node >= options_.nnodes;
    if (!is_spare && state_.nodes[static_cast<size_t>(node)].phase == NodePhase::absent) absent.push_back(door);
  }
  if (absent.empty()) return;
  const RosterEntry& next = absent[invited_++ % absent.size()];
  std::string ignored;
  invitation_ = JobLink::try_join(next.address, next.port, options_.token, kInvitationTime, &ignored);
  if (!invitation_) return;
  invitation_->send(JobLink::kLeader,
                    {.kind = Kind::invite, .numbers = {own_.port}, .text = own_.address + "|" + pack(roster_)});
}

void JobRun::hear_as_leader(const JobLink::Received& heard) {
  const auto known = std::ranges::find_if(peers_, [&](const auto& each) { return each.second == heard.peer; });
  if (known == peers_.end()) {
    const auto spare = std::ranges::find_if(spares_, [&](const auto& each) { return each.second == heard.peer; });
    if (spare != spares_.end()) return hear_spare_machine(spare->first, heard);
    if (heard.message && heard.message->kind == Kind::hello) greet(heard.peer, hello_of(*heard.message));
    if (heard.message && heard.message->kind == Kind::invite) hear_invitation(*heard.message);
    return;
  }
  const int node = known->first;
  if (heard.message) return take_message(node, *heard.message);
  peers_.erase(known);
  if (state_.phase == JobPhase::over) return;
  fences_[node] = Clock::now() +
                  std::chrono::duration_cast<Clock::duration>(heard.was_silent ? kFenceAfterSilence : kFenceAfterEnd);
  cause_ = fmt::format("{} is lost: {}", name_of(node), heard.why);
  say_(fmt::format("concord launch: {}", cause_));
  lead({.kind = JobEvent::Kind::lost, .node = node});
}

void JobRun::greet(int peer, JobHello hello) {
  const bool is_late = has_lost_its_place(hello);
  if (is_late) hello.node = free_spare_number();
  if (const std::string why = why_refused(hello); !why.empty()) {
    return refuse(peer, why);
  }
  const int node = static_cast<int>(hello.node);
  const bool is_spare = node >= options_.nnodes;
  (is_spare ? spares_ : peers_)[node] = peer;
  names_[node] = hello.who;
  node_ranks_[node] = hello.node_rank;
  listener_addresses_[node] = door_of(hello);
  const JobEvent event = joined(node, hello);
  const std::vector<int64_t> place = is_late ? std::vector<int64_t>{node} : std::vector<int64_t>{};
  listener_->send(peer, {.kind = Kind::welcome, .numbers = place, .text = job_});
  if (state_.electorate.attempt >= 0) listener_->send(peer, {.kind = Kind::roster, .text = pack(roster_)});
  if (is_spare || state_.policy.attempts > 0) {
    say_(fmt::format("concord launch: {}{} is here", is_spare ? "the spare " : "", name_of(node)));
  }
  if (!is_spare) lead(event);
}

// True if another launcher has replaced it, or has its number as a spare. A launcher that reconnects keeps its place.
bool JobRun::has_lost_its_place(const JobHello& hello) const {
  const auto is_of_another = [&](int node, int64_t node_rank, int64_t launcher) {
    return node == hello.node && node_rank != node && launcher != hello.launcher;
  };
  if (is_of_another(node_, options_.node, launcher_)) return true;
  return std::ranges::any_of(listener_addresses_, [&](const auto& each) {
    const int node = each.first;
    const bool is_here = peers_.contains(node) || spares_.contains(node);
    return is_here && is_of_another(node, node_ranks_.at(node), each.second.launcher);
  });
}

int JobRun::free_spare_number() const {
  int number = options_.nnodes;
  while (spares_.contains(number)) ++number;
  return number;
}

// One that knows of an attempt before this launcher has started any is of a job that has lost its leader: this one
// leads it from now on.
JobEvent JobRun::joined(int node, const JobHello& hello) {
  const Membership& roster = hello.roster;
  JobEvent event{.kind = JobEvent::Kind::joined,
                 .node = node,
                 .launcher = hello.launcher,
                 .electorate = roster.electorate,
                 .saved_step = hello.saved_step,
                 .kept_step = hello.kept_step};
  if (roster.electorate.attempt <= roster_.electorate.attempt || state_.phase != JobPhase::gathering) return event;
  // Who had this address has ended: nobody else could have it.
  for (const RosterEntry& voter : roster.voters) {
    if (voter.address == own_.address && voter.port == own_.port && voter.launcher != launcher_) {
      event.heir = voter.launcher;
    }
  }
  roster_ = roster;
  for (const RosterEntry& voter : roster.voters) listener_addresses_.try_emplace(voter.node, voter);
  if (hello.job == job_) return event;
  job_ = hello.job;
  say_(fmt::format("concord launch: going on with the job of {}, after attempt {}", name_of(node),
                   roster.electorate.attempt + 1));
  for (const auto& [other, peer] : peers_) listener_->send(peer, {.kind = Kind::welcome, .text = job_});
  return event;
}

std::string JobRun::why_refused(const JobHello& hello) const {
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
  // Ranks of a machine that does not know of fewer ranks would train another batch.
  if (hello.worlds != static_cast<int64_t>(options_.worlds.size())) {
    return differs("the number of layouts with fewer ranks (--allow_fewer_ranks)", hello.worlds - 1,
                   static_cast<int64_t>(options_.worlds.size()) - 1);
  }
  if (node < 0 || node > kMaxNodes) return fmt::format("there is no machine {}", node);
  const int index = static_cast<int>(node);
  if (peers_.contains(index) || spares_.contains(index) || index == node_) {
    return fmt::format("two launchers have --node_rank {}: {}, and {}", node,
                       index == node_ ? describe_this_process() : names_.at(index), hello.who);
  }
  return state_.phase == JobPhase::over ? "the job is over" : "";
}

void JobRun::hear_spare_machine(int node, const JobLink::Received& heard) {
  const bool has_gone = !heard.message || heard.message->kind == Kind::left;
  if (!has_gone) return;
  spares_.erase(node);
  say_(fmt::format("concord launch: the spare {} is gone", name_of(node)));
}

// For the leader a spare machine is the lost one, started again.
void JobRun::replace_lost_machines() {
  for (int node = 0; node < options_.nnodes && !spares_.empty(); ++node) {
    const NodeView& view = state_.nodes[static_cast<size_t>(node)];
    // Until the end of its fence one that has voted for nobody yet may come.
    const bool is_known = names_.contains(node) || (state_.electorate.attempt >= 0 && !view.fenced);
    const bool is_lost = is_known && view.phase == NodePhase::absent && node != node_;
    if (!is_lost || peers_.contains(node) || state_.phase == JobPhase::over) continue;
    const auto [number, peer] = *spares_.begin();
    spares_.erase(spares_.begin());
    say_(fmt::format("concord launch: the spare {} takes the place of {}", name_of(number), name_of(node)));
    peers_[node] = peer;
    names_[node] = names_[number];
    node_ranks_[node] = node_ranks_[number];
    listener_addresses_[node] = listener_addresses_[number];
    listener_addresses_[node].node = node;
    listener_addresses_.erase(number);
    listener_->send(peer, {.kind = Kind::welcome, .numbers = {node}, .text = job_});
    lead({.kind = JobEvent::Kind::joined, .node = node, .launcher = listener_addresses_[node].launcher});
  }
}

void JobRun::take_message(int node, const JobMessage& message) {
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
  } else if (message.kind == Kind::agreed) {
    lead({.kind = JobEvent::Kind::agreed, .node = node, .attempt = static_cast<int>(n[0])});
  } else if (message.kind == Kind::left) {
    cause_ = fmt::format("{} was asked to stop", name_of(node));
    lead({.kind = JobEvent::Kind::left, .node = node, .signal = static_cast<int>(n[0])});
  }
}

// What the own member says to the leader comes back as an event while another one is handled: one after the other.
void JobRun::lead(const JobEvent& event) {
  events_.push_back(event);
  if (is_leading_) return;
  is_leading_ = true;
  while (!events_.empty()) {
    const JobEvent next = events_.front();
    events_.pop_front();
    const JobState before = state_;
    JobStep step = next_step(job_rules(), settings_, std::move(state_), next);
    state_ = std::move(step.state);
    tell_changes(before, next);
    for (const JobAction& action : step.actions) carry_out(action);
  }
  is_leading_ = false;
}

void JobRun::tell_changes(const JobState& before, const JobEvent& event) {
  if (before.phase == JobPhase::running && state_.phase != JobPhase::running && cause_.empty()) {
    cause_ = fmt::format("the ranks on {} have ended", name_of(event.node));
  }
  const bool is_new_attempt = state_.phase == JobPhase::running && before.phase != JobPhase::running;
  if (state_.policy.attempts > before.policy.attempts && is_waiting_for_nodes(state_)) {
    say_(fmt::format("concord launch: waiting up to {:g} s for {} to be started again", options_.rejoin_timeout.count(),
                     fmt::join(absent_nodes(), ", ")));
  }
  if (is_new_attempt) {
    send_roster();
    store_port_.emplace();
    cause_.clear();
    const int world = state_.assignment.world, all = options_.worlds.front();
    const std::string ranks = world == all ? "" : fmt::format(", with {} of {} ranks", world, all);
    if (state_.policy.attempts > 0) {
      const int failures = state_.policy.failures;  // none after those that another leader has counted
      const std::string what =
          failures > 0 ? fmt::format("restart {} of {}", failures, options_.max_restarts) : "going on";
      say_(fmt::format("concord launch: {} (attempt {}{})", what, state_.policy.attempts + 1, ranks));
    } else if (!ranks.empty()) {
      say_(fmt::format("concord launch: starting{}", ranks.substr(1)));
    }
  }
  if (state_.phase == JobPhase::over && before.phase != JobPhase::over && !state_.is_replaced) {
    for (const auto& [node, peer] : spares_) {
      listener_->send(peer, {.kind = Kind::finish, .numbers = {state_.exit_code}, .text = cause_});
    }
  }
  const bool is_at_end = state_.asked_signal == 0 && !state_.is_replaced;
  if (state_.phase == JobPhase::over && before.phase == JobPhase::gathering && is_at_end) {
    const std::vector<std::string> missing = absent_nodes();
    cause_ = missing.empty() ? "the ranks that are left cannot train this job"
                             : fmt::format("{} did not come", fmt::join(missing, ", "));
    if (!has_quorum(settings_, state_)) cause_ += ", and those that are left are too few to decide";
    say_(fmt::format("concord launch: {}; the job ends", cause_));
  }
}

void JobRun::carry_out(const JobAction& action) {
  const bool is_own = action.node == node_;
  const auto send = [&](const JobMessage& message) {
    if (const auto peer = peers_.find(action.node); peer != peers_.end()) listener_->send(peer->second, message);
  };
  switch (action.kind) {
    case JobAction::Kind::start: {
      const JobMessage message = start_message(action);
      if (!is_own) return send(message);
      start_ = AttemptStart{.attempt = action.attempt,
                            .node = node_,
                            .store_address = own_.address,
                            .store_port = store_port_->port(),
                            .world = state_.assignment.world,
                            .share = state_.assignment.nodes[static_cast<size_t>(node_)],
                            .job = job_};
      signal({.event = MemberEvent::start, .attempt = action.attempt});
      return lead({.kind = JobEvent::Kind::agreed, .node = node_, .attempt = action.attempt});
    }
    case JobAction::Kind::agreed:
      roster_.electorate = state_.electorate;
      return send({.kind = Kind::agreed, .numbers = {action.attempt}});
    case JobAction::Kind::kill:
      signal({.event = MemberEvent::stop, .attempt = action.attempt});
      order_ = AttemptOrder::kill;
      return;
    case JobAction::Kind::hand_over: return hand_over();
    case JobAction::Kind::stop:
      if (!is_own) return send({.kind = Kind::stop, .numbers = {action.attempt, action.gently}, .text = cause_});
      order_ = action.gently ? AttemptOrder::wait : order_;
      return signal({.event = MemberEvent::stop, .attempt = action.attempt});
    case JobAction::Kind::finish:
      if (!is_own) return send({.kind = Kind::finish, .numbers = {action.exit_code}, .text = cause_});
      return signal({.event = MemberEvent::finish, .exit_code = action.exit_code});
    case JobAction::Kind::drop:
      if (const auto peer = peers_.find(action.node); peer != peers_.end()) {
        say_(fmt::format("concord launch: {} has not ended its ranks; going on without it", name_of(action.node)));
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
  // The first time others may simply be slower; somebody who has forgotten one hears of it.
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
  for (size_t node = 0; node < state_.nodes.size(); ++node) {  // those that the leader before this one knew
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
