#include "core/launch/job_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <random>

#include "core/config_error.h"
#include "core/mesh/rendezvous.h"

namespace concord {
namespace {

using Kind = JobMessage::Kind;
using Seconds = std::chrono::duration<double>;

// After the end of a connection the launcher is dead, and the kernel has killed its ranks; or it has seen the same.
// After silence it may see that only when as much time has passed there; killing takes a moment.
constexpr Seconds kFenceAfterEnd{1};
constexpr Seconds kFenceAfterSilence = JobLink::kSilence + std::chrono::seconds(3);
constexpr Seconds kKilling{15};  // ranks that do not die are reported after 10 s (attempt.h)
constexpr std::chrono::seconds kFarewell{5};
constexpr std::chrono::seconds kSayWaiting{5};
constexpr Seconds kElection = kFenceAfterSilence;
constexpr std::chrono::milliseconds kSearchEvery{100};
constexpr std::chrono::milliseconds kSearchTime{500};  // for a machine that does not answer
constexpr std::chrono::milliseconds kInviteEvery{500};
constexpr std::chrono::milliseconds kInvitationTime{100};
constexpr int kMostNodes = 1 << 15;

std::string seconds_text(Seconds seconds) { return fmt::format("{:g} s", seconds.count()); }

int64_t random_number() {
  std::random_device random;
  return 1 + static_cast<int64_t>((uint64_t{random()} << 16 ^ random()) & 0xFFFF'FFFF'FFFF);
}

// Of "JOB|ADDRESS|ROSTER|who", with nothing where there is none.
std::string hello_part(const JobMessage& hello, int index) {
  std::string_view text = hello.text;
  for (int i = 0; i < index; ++i) {
    const size_t bar = text.find('|');
    if (bar == std::string_view::npos) return "";
    text.remove_prefix(bar + 1);
  }
  return std::string(index < 3 ? text.substr(0, text.find('|')) : text);
}

Roster roster_of(const JobMessage& hello) { return unpack_roster(hello_part(hello, 2)).value_or(Roster{}); }

RosterEntry door_of(const JobMessage& hello) {
  return {.launcher = hello.numbers[5],
          .node = static_cast<int>(hello.numbers[0]),
          .port = static_cast<int>(hello.numbers[6]),
          .address = hello_part(hello, 1)};
}

}  // namespace

JobRun::JobRun(JobRunOptions options, Say say, const std::function<bool()>& is_cancelled)
    : options_(std::move(options)),
      say_(std::move(say)),
      launcher_(random_number()),
      node_(options_.node),
      job_(options_.job) {
  own_ = {.launcher = launcher_, .node = node_, .port = options_.master_port, .address = options_.master_addr};
  if (node_ == 0) {
    if (options_.nnodes > 1) door_ = JobLink::serve(options_.master_addr, options_.master_port, options_.token);
    warn_of_strangers();
    begin_to_lead();
    lead({.kind = JobEvent::Kind::joined, .node = 0, .launcher = launcher_});
    return;
  }
  up_ = JobLink::join(options_.master_addr, options_.master_port, options_.token,
                      std::chrono::duration_cast<std::chrono::milliseconds>(options_.join_timeout), is_cancelled);
  if (!up_) return;
  own_.address = up_->own_address();
  door_ = JobLink::serve(own_.address, 0, options_.token);
  own_.port = door_->port();
  warn_of_strangers();
  say_hello();
}

void JobRun::warn_of_strangers() const {
  if (!options_.token.empty() || !door_) return;
  say_(
      fmt::format("concord launch: anyone who can reach {}:{} can disturb this job: {} is not set; set it to the same "
                  "random text on all machines",
                  own_.address, own_.port, kJobToken));
}

JobRun::~JobRun() {
  if (up_) up_->close(kFarewell);
  if (door_) door_->close(kFarewell);
}

void JobRun::pump() {
  if (door_) {
    for (const JobLink::Heard& heard : door_->take()) leads_ ? hear_as_leader(heard) : hear_at_door(heard);
  }
  if (up_) {
    for (const JobLink::Heard& heard : up_->take()) {
      if (up_) hear_as_member(heard);
    }
  }
  if (member_.phase == MemberPhase::searching) search();
  if (!leads_) return;
  replace_lost_machines();
  keep_time();
  invite_others();
}

// --- the leader

void JobRun::begin_to_lead() {
  leads_ = true;
  settings_ = {.slots = std::vector<int>(static_cast<size_t>(options_.nnodes), options_.nproc),
               .worlds = options_.worlds,
               .together = options_.together,
               .max_restarts = options_.max_restarts,
               .leader = node_};
  state_ = first_state(settings_);
  doors_[node_] = own_;
}

// It was elected, and goes on with what those who have voted for it know.
void JobRun::take_over() {
  say_(fmt::format("concord launch: this launcher, of machine {}, leads the job from now on, at {}:{}", node_,
                   own_.address, own_.port));
  searches_since_.reset();
  invited_to_.reset();
  begin_to_lead();
  fences_.clear();
  bool has_ended = leader_has_ended_;
  for (const auto& [peer, hello] : votes_) {
    const Roster roster = roster_of(hello);
    if (roster.electorate.attempt > roster_.electorate.attempt) roster_ = roster;
    has_ended = has_ended && hello.numbers[9] != 0;
  }
  for (const RosterEntry& voter : roster_.voters) {
    doors_.try_emplace(voter.node, voter);
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

// The others have elected another leader: this one is a member like them.
void JobRun::hand_over() {
  leads_ = false;
  for (const std::map<int, int>& each : {peers_, spares_}) {
    for (const auto& [node, peer] : each) door_->drop(peer);
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
  for (const auto& [node, door] : doors_) {
    if (roster_.electorate.now.contains(door.launcher)) roster_.voters.push_back(door);
  }
  for (const std::map<int, int>& each : {peers_, spares_}) {
    for (const auto& [node, peer] : each) door_->send(peer, {.kind = Kind::roster, .text = pack(roster_)});
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
  for (const auto& [node, door] : doors_) {
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

void JobRun::hear_invitation(const JobMessage& message) {
  const size_t bar = message.text.find('|');
  const std::optional<Roster> roster =
      bar == std::string::npos ? std::nullopt : unpack_roster(std::string_view(message.text).substr(bar + 1));
  const int64_t port = message.numbers[0];
  if (!roster || port < 1 || port > 65535) return;
  if (!leads_ && member_.phase != MemberPhase::searching) return;
  invited_to_ = {.port = static_cast<int>(port), .address = message.text.substr(0, bar)};
  if (leads_) lead({.kind = JobEvent::Kind::replaced, .node = node_});
}

void JobRun::hear_as_leader(const JobLink::Heard& heard) {
  const auto known = std::ranges::find_if(peers_, [&](const auto& each) { return each.second == heard.peer; });
  if (known == peers_.end()) {
    const auto spare = std::ranges::find_if(spares_, [&](const auto& each) { return each.second == heard.peer; });
    if (spare != spares_.end()) return hear_spare_machine(spare->first, heard);
    if (heard.message && heard.message->kind == Kind::hello) greet(heard.peer, *heard.message);
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

void JobRun::greet(int peer, const JobMessage& hello) {
  if (const std::string why = why_refused(hello); !why.empty()) {
    return refuse(peer, why);
  }
  const int node = static_cast<int>(hello.numbers[0]);
  const bool is_spare = node >= options_.nnodes;
  (is_spare ? spares_ : peers_)[node] = peer;
  names_[node] = hello_part(hello, 3);
  doors_[node] = door_of(hello);
  const JobEvent event = joined(node, hello);
  door_->send(peer, {.kind = Kind::welcome, .text = job_});
  if (state_.electorate.attempt >= 0) door_->send(peer, {.kind = Kind::roster, .text = pack(roster_)});
  if (is_spare || state_.policy.attempts > 0) {
    say_(fmt::format("concord launch: {}{} is here", is_spare ? "the spare " : "", name_of(node)));
  }
  if (!is_spare) lead(event);
}

// One that knows of an attempt before this launcher has started any is of a job that has lost its leader: this one
// leads it from now on.
JobEvent JobRun::joined(int node, const JobMessage& hello) {
  const Roster roster = roster_of(hello);
  JobEvent event{.kind = JobEvent::Kind::joined,
                 .node = node,
                 .launcher = hello.numbers[5],
                 .electorate = roster.electorate,
                 .saved_step = hello.numbers[7],
                 .kept_step = hello.numbers[8]};
  if (roster.electorate.attempt <= roster_.electorate.attempt || state_.phase != JobPhase::gathering) return event;
  // Who had this address has ended: nobody else could have it.
  for (const RosterEntry& voter : roster.voters) {
    if (voter.address == own_.address && voter.port == own_.port && voter.launcher != launcher_) {
      event.heir = voter.launcher;
    }
  }
  roster_ = roster;
  for (const RosterEntry& voter : roster.voters) doors_.try_emplace(voter.node, voter);
  const std::string job = hello_part(hello, 0);
  if (job == job_) return event;
  job_ = job;
  say_(fmt::format("concord launch: going on with the job of {}, after attempt {}", name_of(node),
                   roster.electorate.attempt + 1));
  for (const auto& [other, peer] : peers_) door_->send(peer, {.kind = Kind::welcome, .text = job_});
  return event;
}

std::string JobRun::why_refused(const JobMessage& hello) const {
  const int64_t node = hello.numbers[0];
  const auto differs = [&](const char* name, int64_t given, int64_t own) {
    return fmt::format("{} is {} on machine {} and {} on machine {}; start all launchers with the same settings", name,
                       given, node, own, node_);
  };
  if (hello.numbers[1] != options_.nnodes) return differs("--nnodes", hello.numbers[1], options_.nnodes);
  if (hello.numbers[2] != options_.nproc) return differs("--nproc", hello.numbers[2], options_.nproc);
  if (hello.numbers[3] != options_.max_restarts) {
    return differs("--max_restarts", hello.numbers[3], options_.max_restarts);
  }
  // Ranks of a machine that does not know of fewer ranks would train another batch.
  if (hello.numbers[4] != static_cast<int64_t>(options_.worlds.size())) {
    return differs("the number of layouts with fewer ranks (--allow_fewer_ranks)", hello.numbers[4] - 1,
                   static_cast<int64_t>(options_.worlds.size()) - 1);
  }
  if (node < 0 || node > kMostNodes) return fmt::format("there is no machine {}", node);
  const int index = static_cast<int>(node);
  if (peers_.contains(index) || spares_.contains(index) || index == node_) {
    return fmt::format("two launchers have --node_rank {}: {}, and {}", node,
                       index == node_ ? describe_this_process() : names_.at(index), hello_part(hello, 3));
  }
  return state_.phase == JobPhase::over ? "the job is over" : "";
}

void JobRun::hear_spare_machine(int node, const JobLink::Heard& heard) {
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
    doors_[node] = doors_[number];
    doors_[node].node = node;
    doors_.erase(number);
    door_->send(peer, {.kind = Kind::welcome, .numbers = {node}, .text = job_});
    lead({.kind = JobEvent::Kind::joined, .node = node, .launcher = doors_[node].launcher});
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
    say_(fmt::format("concord launch: waiting up to {} for {} to be started again",
                     seconds_text(options_.rejoin_timeout), fmt::join(absent_nodes(), ", ")));
  }
  if (is_new_attempt) {
    send_roster();
    store_port_.emplace();
    cause_.clear();
    const int world = state_.assignment.world, all = options_.worlds.front();
    const std::string ranks = world == all ? "" : fmt::format(", with {} of {} ranks", world, all);
    if (state_.policy.attempts > 0) {
      say_(fmt::format("concord launch: restart {} of {} (attempt {}{})", state_.policy.failures, options_.max_restarts,
                       state_.policy.attempts + 1, ranks));
    } else if (!ranks.empty()) {
      say_(fmt::format("concord launch: starting{}", ranks.substr(1)));
    }
  }
  if (state_.phase == JobPhase::over && before.phase != JobPhase::over && !state_.is_replaced) {
    for (const auto& [node, peer] : spares_) {
      door_->send(peer, {.kind = Kind::finish, .numbers = {state_.exit_code}, .text = cause_});
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
    if (const auto peer = peers_.find(action.node); peer != peers_.end()) door_->send(peer->second, message);
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
        door_->drop(peer->second);
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
    say_(fmt::format("concord launch: waiting up to {} for {}", seconds_text(options_.join_timeout),
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

// --- a member

// While it does not lead: one of a machine above this one may wait here until it is known who does.
void JobRun::hear_at_door(const JobLink::Heard& heard) {
  if (!heard.message) {
    votes_.erase(heard.peer);
    return;
  }
  if (heard.message->kind == Kind::invite) return hear_invitation(*heard.message);
  if (heard.message->kind != Kind::hello) return;
  const bool may_lead = member_.phase == MemberPhase::searching && roster_.electorate.now.contains(launcher_);
  if (may_lead && heard.message->numbers[0] > node_) {
    votes_[heard.peer] = *heard.message;
    return;
  }
  refuse(heard.peer, "this launcher does not lead the job");
}

void JobRun::refuse(int peer, const std::string& why) {
  door_->send(peer, {.kind = Kind::refused, .text = why});
  door_->drop(peer);
}

// Of those who wait at the door, and of its own.
bool JobRun::is_elected() const {
  Electorate newest = roster_.electorate;
  std::vector<int64_t> present = {launcher_};
  for (const auto& [peer, hello] : votes_) {
    present.push_back(hello.numbers[5]);
    const Roster roster = roster_of(hello);
    if (roster.electorate.attempt > newest.attempt) newest = roster.electorate;
  }
  return newest.now.contains(launcher_) && has_quorum(newest, present);
}

void JobRun::hear_end_of_link(const JobLink::Heard& heard) {
  if (is_over()) return;
  if (searches_since_) {
    why_not_found_ = heard.why;
    return up_.reset();
  }
  if (!is_welcome_) {
    throw ConfigError(
        fmt::format("the launcher at {}:{} did not accept this one: {}; all launchers of a job need the "
                    "same {}, or none",
                    options_.master_addr, options_.master_port, heard.why, kJobToken));
  }
  leader_has_ended_ = !heard.was_silent;
  lose_leader(heard.why);
}

void JobRun::hear_welcome(const JobMessage& message) {
  is_welcome_ = true;
  job_ = message.text;
  if (searches_since_) {
    searches_since_.reset();
    invited_to_.reset();
    say_("concord launch: found the launcher that leads the job");
    signal({.event = MemberEvent::found});
    for (const auto& [peer, hello] : std::exchange(votes_, {})) refuse(peer, "another launcher leads the job");
  }
  if (!message.numbers.empty()) {
    node_ = own_.node = static_cast<int>(message.numbers[0]);
    say_(fmt::format("concord launch: this spare machine is machine {} from now on", node_));
  } else if (node_ >= options_.nnodes) {
    say_("concord launch: this is a spare machine, which waits for another one to be lost");
  }
}

void JobRun::hear_start(const JobMessage& message) {
  const std::vector<int64_t>& n = message.numbers;
  AttemptStart start{.attempt = static_cast<int>(n[0]),
                     .node = node_,
                     .store_address = message.text,
                     .store_port = static_cast<int>(n[1]),
                     .world = static_cast<int>(n[2]),
                     .share = {},
                     .job = job_};
  start.share.first_rank = static_cast<int>(n[3]);
  for (size_t i = 4; i < n.size(); ++i) start.share.slots.push_back(static_cast<int>(n[i]));
  if (start.attempt > 0) say_(fmt::format("concord launch: attempt {}", start.attempt + 1));
  start_ = std::move(start);
  signal({.event = MemberEvent::start, .attempt = static_cast<int>(n[0])});
}

void JobRun::hear_as_member(const JobLink::Heard& heard) {
  if (!heard.message) return hear_end_of_link(heard);
  const JobMessage& message = *heard.message;
  const std::vector<int64_t>& n = message.numbers;
  if (message.kind == Kind::refused && searches_since_) {
    why_not_found_ = message.text;  // a leader that has not noticed the loss yet says so, too
    return up_.reset();
  }
  if (message.kind == Kind::refused) throw ConfigError(message.text);
  if (message.kind == Kind::welcome) {
    hear_welcome(message);
  } else if (message.kind == Kind::roster) {
    const std::optional<Roster> roster = unpack_roster(message.text);
    if (!roster) return;
    roster_ = *roster;
    up_->send(JobLink::kLeader, {.kind = Kind::agreed, .numbers = {roster_.electorate.attempt}});
  } else if (message.kind == Kind::agreed) {
    if (n[0] == roster_.electorate.attempt) roster_.electorate.before.clear();
  } else if (message.kind == Kind::start) {
    hear_start(message);
  } else if (message.kind == Kind::stop) {
    say_(fmt::format("concord launch: the attempt ends: {}", message.text));
    if (n[1] != 0) order_ = AttemptOrder::wait;
    signal({.event = MemberEvent::stop, .attempt = static_cast<int>(n[0])});
  } else if (message.kind == Kind::finish) {
    if (n[0] != 0) say_(fmt::format("concord launch: the job ends with exit code {}: {}", n[0], message.text));
    signal({.event = MemberEvent::finish, .exit_code = static_cast<int>(n[0])});
  }
}

void JobRun::say_hello() {
  const std::string job = searches_since_ ? job_ : "", roster = searches_since_ ? pack(roster_) : "";
  up_->send(JobLink::kLeader, {.kind = Kind::hello,
                               .numbers = {node_, options_.nnodes, options_.nproc, options_.max_restarts,
                                           static_cast<int64_t>(options_.worlds.size()), launcher_, own_.port,
                                           saved_step_, kept_step_, searches_since_ && leader_has_ended_},
                               .text = fmt::format("{}|{}|{}|{}", job, own_.address, roster, describe_this_process())});
}

void JobRun::lose_leader(const std::string& why) {
  say_(
      fmt::format("concord launch: the launcher that leads the job is lost: {}; waiting up to {} for the others to "
                  "elect another one, or for it to be started again, with --resume_from_checkpoint true",
                  why, seconds_text(patience())));
  signal({.event = MemberEvent::leader_lost});
  // An attempt that came with the loss is not begun any more: there are no ranks to wait for.
  if (std::exchange(start_, std::nullopt)) signal({.event = MemberEvent::ranks_ended});
}

// The others, where they could decide without the leader, may notice the loss later than this one.
Seconds JobRun::patience() const {
  std::vector<int64_t> others = roster_.electorate.now.launchers;
  std::erase(others, roster_.electorate.now.leader);
  return has_quorum(roster_.electorate, others) ? std::max(options_.rejoin_timeout, kElection)
                                                : options_.rejoin_timeout;
}

// A leader that has invited it; where the first one is started again; who could be elected instead of it.
std::vector<RosterEntry> JobRun::where_to_search() const {
  std::vector<RosterEntry> found;
  if (invited_to_) found.push_back(*invited_to_);
  const RosterEntry first{.port = options_.master_port, .address = options_.master_addr};
  const auto is_there = [](const RosterEntry& one, const RosterEntry& other) {
    return one.address == other.address && one.port == other.port;
  };
  if (!is_there(first, own_)) found.push_back(first);
  const bool votes = roster_.electorate.now.contains(launcher_);
  for (const RosterEntry& voter : roster_.voters) {
    const bool may_lead = !votes || voter.node < node_;
    if (may_lead && !is_there(voter, own_) && !is_there(voter, first)) found.push_back(voter);
  }
  return found;
}

// Now and then, while there are no ranks.
void JobRun::search() {
  const Clock::time_point now = Clock::now();
  if (now - *searches_since_ >= patience()) {
    say_(
        fmt::format("concord launch: found no launcher that leads the job ({}); this one ends (exit code {}); "
                    "start the job again with --resume_from_checkpoint true",
                    why_not_found_, kExitRequeue));
    return signal({.event = MemberEvent::gave_up});
  }
  if (up_) return;
  if (is_elected()) return signal({.event = MemberEvent::elected});
  if (now < next_search_) return;
  next_search_ = now + kSearchEvery;
  const std::vector<RosterEntry> places = where_to_search();
  if (places.empty()) return;
  const RosterEntry& place = places[searched_++ % places.size()];
  up_ = JobLink::try_join(place.address, place.port, options_.token, kSearchTime, &why_not_found_);
  if (up_) say_hello();
}

void JobRun::signal(const MemberSignal& signal) {
  const MemberStep step = next_step(job_rules(), member_, signal);
  member_ = step.state;
  do_as_told(step.order, signal);
}

void JobRun::do_as_told(MemberOrder order, const MemberSignal& signal) {
  switch (order) {
    case MemberOrder::none: return;
    case MemberOrder::start_ranks:  // by who takes start_
      order_ = AttemptOrder::none;
      return;
    case MemberOrder::stop_ranks:
      if (order_ != AttemptOrder::wait) order_ = options_.kills_at_once ? AttemptOrder::kill : AttemptOrder::end;
      return;
    case MemberOrder::kill_ranks: order_ = AttemptOrder::kill; return;
    case MemberOrder::tell_failed:
      return to_leader({.kind = Kind::failed,
                        .numbers = {member_.attempt, end_.failed_slot, end_.exit_code, failed_rank_},
                        .text = failed_how_});
    case MemberOrder::tell_ended: return to_leader(ended_message(member_.attempt, end_));
    case MemberOrder::find_leader:
      up_.reset();
      searches_since_ = Clock::now();
      why_not_found_ = "nobody has listened there";
      return;
    case MemberOrder::lead: return take_over();
    case MemberOrder::tell_leaving: return to_leader({.kind = Kind::left, .numbers = {signal.exit_code - 128}});
  }
}

void JobRun::to_leader(const JobMessage& message) {
  if (leads_) return take_message(node_, message);
  if (up_) up_->send(JobLink::kLeader, message);
}

void JobRun::rank_failed(const NodeEnd& end, int rank, const std::string& how) {
  end_ = end;
  failed_rank_ = rank;
  failed_how_ = how;
  signal({.event = MemberEvent::rank_failed});
}

void JobRun::ranks_ended(const NodeEnd& end) {
  end_ = end;
  // The leader has to know before it decides.
  if (leads_) {
    lead({.kind = JobEvent::Kind::progress, .node = node_, .saved_step = saved_step_, .kept_step = kept_step_});
  } else if (up_) {
    up_->send(JobLink::kLeader, {.kind = Kind::alive, .numbers = {saved_step_, kept_step_}});
  }
  signal({.event = MemberEvent::ranks_ended});
}

void JobRun::asked(int signal_number) { signal({.event = MemberEvent::asked, .exit_code = 128 + signal_number}); }

void JobRun::progress(int64_t saved_step, int64_t kept_step) {
  if (saved_step == saved_step_ && kept_step == kept_step_) return;
  saved_step_ = saved_step;
  kept_step_ = kept_step;
  if (leads_) {
    lead({.kind = JobEvent::Kind::progress, .node = node_, .saved_step = saved_step, .kept_step = kept_step});
  } else if (up_) {
    up_->say_alive({.kind = Kind::alive, .numbers = {saved_step, kept_step}});
  }
}

}  // namespace concord
