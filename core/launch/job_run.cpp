#include "core/launch/job_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

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
constexpr std::chrono::milliseconds kSearchEvery{200};
constexpr int kMostNodes = 1 << 15;

std::string seconds_text(Seconds seconds) { return fmt::format("{:g} s", seconds.count()); }

}  // namespace

JobRun::JobRun(JobRunOptions options, Say say, const std::function<bool()>& is_cancelled)
    : options_(std::move(options)), say_(std::move(say)), node_(options_.node), job_(options_.job) {
  if (leads()) {
    if (options_.nnodes > 1) link_ = JobLink::serve(options_.master_addr, options_.master_port, options_.token);
    settings_ = {.slots = std::vector<int>(static_cast<size_t>(options_.nnodes), options_.nproc),
                 .worlds = options_.worlds,
                 .together = options_.together,
                 .max_restarts = options_.max_restarts};
    state_ = first_state(settings_);
    if (options_.token.empty() && options_.nnodes > 1) {
      say_(
          fmt::format("concord launch: anyone who can reach {}:{} can disturb this job: {} is not set; set it to the "
                      "same random text on all machines",
                      options_.master_addr, options_.master_port, kJobToken));
    }
    lead({.kind = JobEvent::Kind::joined, .node = 0});
    return;
  }
  link_ = JobLink::join(options_.master_addr, options_.master_port, options_.token,
                        std::chrono::duration_cast<std::chrono::milliseconds>(options_.join_timeout), is_cancelled);
  if (!link_) return;
  say_hello();
}

JobRun::~JobRun() {
  if (link_) link_->close(kFarewell);
}

void JobRun::pump() {
  if (link_) {
    for (const JobLink::Heard& heard : link_->take()) hear(heard);
  }
  if (member_.phase == MemberPhase::searching) search();
  if (leads()) replace_lost_machines();
  if (leads()) keep_time();
}

void JobRun::hear(const JobLink::Heard& heard) { leads() ? hear_as_leader(heard) : hear_as_member(heard); }

// --- the leader

void JobRun::hear_as_leader(const JobLink::Heard& heard) {
  const auto known = std::ranges::find_if(peers_, [&](const auto& each) { return each.second == heard.peer; });
  if (known == peers_.end()) {
    const auto spare = std::ranges::find_if(spares_, [&](const auto& each) { return each.second == heard.peer; });
    if (spare != spares_.end()) return hear_spare_machine(spare->first, heard);
    if (heard.message && heard.message->kind == Kind::hello) greet(heard.peer, *heard.message);
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
    link_->send(peer, {.kind = Kind::refused, .text = why});
    link_->drop(peer);
    return;
  }
  const int node = static_cast<int>(hello.numbers[0]);
  const bool is_spare = node >= options_.nnodes;
  (is_spare ? spares_ : peers_)[node] = peer;
  names_[node] = hello.text.substr(hello.text.find('|') + 1);
  const JobEvent event = joined(node, hello);
  link_->send(peer, {.kind = Kind::welcome, .text = job_});
  if (is_spare || state_.policy.attempts > 0) {
    say_(fmt::format("concord launch: {}{} is here", is_spare ? "the spare " : "", name_of(node)));
  }
  if (!is_spare) lead(event);
}

// One that has had ranks before this launcher has started any is of a job that has lost its leader: this one leads it
// from now on.
JobEvent JobRun::joined(int node, const JobMessage& hello) {
  JobEvent event{.kind = JobEvent::Kind::joined, .node = node};
  if (hello.numbers.size() < 8) return event;
  event.last_attempt = static_cast<int>(hello.numbers[5]);
  event.saved_step = hello.numbers[6];
  event.kept_step = hello.numbers[7];
  const std::string job = hello.text.substr(0, hello.text.find('|'));
  if (state_.policy.attempts > 0 || state_.phase != JobPhase::gathering || job == job_) return event;
  job_ = job;
  say_(fmt::format("concord launch: going on with the job of {}, after attempt {}", name_of(node),
                   event.last_attempt + 1));
  for (const auto& [other, peer] : peers_) link_->send(peer, {.kind = Kind::welcome, .text = job_});
  return event;
}

std::string JobRun::why_refused(const JobMessage& hello) const {
  const int64_t node = hello.numbers[0];
  const auto differs = [&](const char* name, int64_t given, int64_t own) {
    return fmt::format("{} is {} on machine {} and {} on machine 0; start all launchers with the same settings", name,
                       given, node, own);
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
  if (node < 1 || node > kMostNodes) return fmt::format("there is no machine {}", node);
  const int index = static_cast<int>(node);
  if (peers_.contains(index) || spares_.contains(index)) {
    return fmt::format("two launchers have --node_rank {}: {}, and {}", node, names_.at(index), hello.text);
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
  for (int node = 1; node < options_.nnodes && !spares_.empty(); ++node) {
    const bool is_lost = names_.contains(node) && state_.nodes[static_cast<size_t>(node)].phase == NodePhase::absent;
    if (!is_lost || peers_.contains(node) || state_.phase == JobPhase::over) continue;
    const auto [number, peer] = *spares_.begin();
    spares_.erase(spares_.begin());
    say_(fmt::format("concord launch: the spare {} takes the place of {}", name_of(number), name_of(node)));
    peers_[node] = peer;
    names_[node] = names_[number];
    link_->send(peer, {.kind = Kind::welcome, .numbers = {node}, .text = job_});
    lead({.kind = JobEvent::Kind::joined, .node = node});
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
      if (node != 0) say_(fmt::format("concord launch: {}", cause_));
    }
    lead({.kind = JobEvent::Kind::failed, .node = node, .attempt = static_cast<int>(n[0]), .end = end});
  } else if (message.kind == Kind::ended) {
    lead({.kind = JobEvent::Kind::ended, .node = node, .attempt = static_cast<int>(n[0]), .end = node_end(message)});
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
  if (state_.phase == JobPhase::over && before.phase != JobPhase::over) {
    for (const auto& [node, peer] : spares_) {
      link_->send(peer, {.kind = Kind::finish, .numbers = {state_.exit_code}, .text = cause_});
    }
  }
  if (state_.phase == JobPhase::over && before.phase == JobPhase::gathering && state_.asked_signal == 0) {
    const std::vector<std::string> missing = absent_nodes();
    cause_ = missing.empty() ? "the ranks that are left cannot train this job"
                             : fmt::format("{} did not come", fmt::join(missing, ", "));
    say_(fmt::format("concord launch: {}; the job ends", cause_));
  }
}

void JobRun::carry_out(const JobAction& action) {
  const bool is_own = action.node == 0;
  const auto send = [&](const JobMessage& message) {
    if (const auto peer = peers_.find(action.node); peer != peers_.end()) link_->send(peer->second, message);
  };
  switch (action.kind) {
    case JobAction::Kind::start: {
      if (is_own) store_port_.emplace();  // machine 0 is the first, and serves the store
      const JobMessage message = start_message(action);
      if (!is_own) return send(message);
      start_ = AttemptStart{.attempt = action.attempt,
                            .node = 0,
                            .store_port = store_port_->port(),
                            .world = state_.assignment.world,
                            .share = state_.assignment.nodes[0],
                            .job = job_};
      return signal({.event = MemberEvent::start, .attempt = action.attempt});
    }
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
        link_->drop(peer->second);
        peers_.erase(peer);
      }
      fences_[action.node] = Clock::now() + std::chrono::duration_cast<Clock::duration>(kFenceAfterSilence);
      return;
  }
}

JobMessage JobRun::start_message(const JobAction& action) const {
  const NodeShare& share = state_.assignment.nodes[static_cast<size_t>(action.node)];
  JobMessage message{.kind = Kind::start,
                     .numbers = {action.attempt, store_port_->port(), state_.assignment.world, share.first_rank}};
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

void JobRun::hear_as_member(const JobLink::Heard& heard) {
  if (!heard.message) {
    if (is_over()) return;
    if (searches_since_) {
      why_not_found_ = heard.why;
      return link_.reset();
    }
    if (!is_welcome_) {
      throw ConfigError(
          fmt::format("the launcher at {}:{} did not accept this one: {}; all launchers of a job need the "
                      "same {}, or none",
                      options_.master_addr, options_.master_port, heard.why, kJobToken));
    }
    return lose_leader(heard.why);
  }
  const JobMessage& message = *heard.message;
  const std::vector<int64_t>& n = message.numbers;
  if (message.kind == Kind::refused && searches_since_) {
    why_not_found_ = message.text;  // a leader that has not noticed the loss yet says so, too
    return link_.reset();
  }
  if (message.kind == Kind::refused) throw ConfigError(message.text);
  if (message.kind == Kind::welcome) {
    is_welcome_ = true;
    job_ = message.text;
    if (searches_since_) {
      searches_since_.reset();
      say_("concord launch: the launcher of machine 0 is here again");
      signal({.event = MemberEvent::found});
    }
    if (!n.empty()) {
      node_ = static_cast<int>(n[0]);
      say_(fmt::format("concord launch: this spare machine is machine {} from now on", node_));
    } else if (node_ >= options_.nnodes) {
      say_("concord launch: this is a spare machine, which waits for another one to be lost");
    }
  } else if (message.kind == Kind::start) {
    AttemptStart start{.attempt = static_cast<int>(n[0]),
                       .node = node_,
                       .store_port = static_cast<int>(n[1]),
                       .world = static_cast<int>(n[2]),
                       .share = {},
                       .job = job_};
    start.share.first_rank = static_cast<int>(n[3]);
    for (size_t i = 4; i < n.size(); ++i) start.share.slots.push_back(static_cast<int>(n[i]));
    if (start.attempt > 0) say_(fmt::format("concord launch: attempt {}", start.attempt + 1));
    start_ = std::move(start);
    signal({.event = MemberEvent::start, .attempt = static_cast<int>(n[0])});
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
  JobMessage hello{.kind = Kind::hello,
                   .numbers = {node_, options_.nnodes, options_.nproc, options_.max_restarts,
                               static_cast<int64_t>(options_.worlds.size())},
                   .text = describe_this_process()};
  if (searches_since_ && member_.attempt >= 0) {
    for (const int64_t number : {int64_t{member_.attempt}, saved_step_, kept_step_}) hello.numbers.push_back(number);
    hello.text = job_ + "|" + hello.text;
  }
  link_->send(JobLink::kLeader, hello);
}

void JobRun::lose_leader(const std::string& why) {
  say_(
      fmt::format("concord launch: the launcher of machine 0, which leads the "
                  "job, is lost: {}; waiting up to {} for it "
                  "to be started again, with --resume_from_checkpoint true",
                  why, seconds_text(options_.rejoin_timeout)));
  signal({.event = MemberEvent::leader_lost});
  // An attempt that came with the loss is not begun any more: there are no ranks to wait for.
  if (std::exchange(start_, std::nullopt)) signal({.event = MemberEvent::ranks_ended});
}

// Now and then, while there are no ranks.
void JobRun::search() {
  const Clock::time_point now = Clock::now();
  if (now - *searches_since_ >= options_.rejoin_timeout) {
    say_(
        fmt::format("concord launch: the launcher of machine 0 was not "
                    "started again ({}); this one ends (exit code {}); "
                    "start the job again with --resume_from_checkpoint true",
                    why_not_found_, kExitRequeue));
    return signal({.event = MemberEvent::gave_up});
  }
  if (link_ || now < next_search_) return;
  next_search_ = now + kSearchEvery;
  link_ = JobLink::try_join(options_.master_addr, options_.master_port, options_.token, &why_not_found_);
  if (link_) say_hello();
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
      link_.reset();
      searches_since_ = Clock::now();
      why_not_found_ = "nobody has listened there";
      return;
    case MemberOrder::tell_leaving: return to_leader({.kind = Kind::left, .numbers = {signal.exit_code - 128}});
  }
}

void JobRun::to_leader(const JobMessage& message) {
  if (leads()) return take_message(0, message);
  if (link_) link_->send(JobLink::kLeader, message);
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
  if (leads()) {
    lead({.kind = JobEvent::Kind::progress, .saved_step = saved_step_, .kept_step = kept_step_});
  } else if (link_) {
    link_->send(JobLink::kLeader, {.kind = Kind::alive, .numbers = {saved_step_, kept_step_}});
  }
  signal({.event = MemberEvent::ranks_ended});
}

void JobRun::asked(int signal_number) { signal({.event = MemberEvent::asked, .exit_code = 128 + signal_number}); }

void JobRun::progress(int64_t saved_step, int64_t kept_step) {
  if (saved_step == saved_step_ && kept_step == kept_step_) return;
  saved_step_ = saved_step;
  kept_step_ = kept_step;
  if (leads()) {
    lead({.kind = JobEvent::Kind::progress, .saved_step = saved_step, .kept_step = kept_step});
  } else if (link_) {
    link_->say_alive({.kind = Kind::alive, .numbers = {saved_step, kept_step}});
  }
}

}  // namespace concord
