#include "core/launch/job/job_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <random>
#include <thread>

#include "core/base/config_error.h"
#include "core/mesh/store/rendezvous.h"

namespace concord {
namespace {

using Kind = JobMessage::Kind;
using Seconds = std::chrono::duration<double>;

constexpr std::chrono::seconds kFarewell{5};
constexpr std::chrono::milliseconds kJoinEvery{50};
constexpr std::chrono::milliseconds kJoinTime{1000};  // for a machine that does not answer
constexpr std::chrono::milliseconds kSearchEvery{100};
constexpr std::chrono::milliseconds kSearchTime{500};  // for a machine that does not answer

int64_t random_number() {
  std::random_device random;
  return 1 + static_cast<int64_t>((uint64_t{random()} << 16 ^ random()) & 0xFFFF'FFFF'FFFF);
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
    if (options_.nnodes > 1) listener_ = JobLink::serve(options_.master_addr, options_.master_port, options_.token);
    warn_of_strangers();
    begin_to_lead();
    lead({.kind = JobEvent::Kind::joined, .node = 0, .launcher = launcher_});
    return;
  }
  joins_until_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(options_.join_timeout);
  while (!up_ && !is_cancelled()) {
    seek_job();
    if (!up_) std::this_thread::sleep_for(kJoinEvery);
  }
}

// Until it belongs to the job.
void JobRun::seek_job() {
  if (Clock::now() >= joins_until_) {
    throw ConfigError(
        fmt::format("found no launcher at {}:{} within {:g} s ({}); is the one with --node_rank 0 running "
                    "there, and do all have the same --master_addr and --master_port?",
                    options_.master_addr, options_.master_port, options_.join_timeout.count(), why_not_found_));
  }
  const std::vector<RosterEntry> places = where_to_join();
  connect(places[searched_++ % places.size()], kJoinTime);
}

std::vector<RosterEntry> JobRun::where_to_join() const {
  std::vector<RosterEntry> places;
  if (invited_to_) places.push_back(*invited_to_);
  places.push_back({.port = options_.master_port, .address = options_.master_addr});
  RosterEntry elected;
  if (std::ifstream(options_.leader_file) >> elected.port >> elected.address) places.push_back(elected);
  return places;
}

// |up_| is set where somebody listens there.
void JobRun::connect(const RosterEntry& place, std::chrono::milliseconds limit) {
  up_ = JobLink::try_join(place.address, place.port, options_.token, limit, &why_not_found_);
  if (!up_) return;
  up_at_ = place;
  if (!is_welcome_ && !searches_since_) {
    own_.address = up_->own_address();
    listener_ = JobLink::serve(own_.address, 0, options_.token);
    own_.port = listener_->port();
    warn_of_strangers();
  }
  say_hello();
}

void JobRun::warn_of_strangers() const {
  if (!options_.token.empty() || !listener_) return;
  say_(
      fmt::format("concord launch: anyone who can reach {}:{} can disturb this job: {} is not set; set it to the same "
                  "random text on all machines",
                  own_.address, own_.port, kJobToken));
}

JobRun::~JobRun() {
  if (leads_ && has_written_leader_) std::remove(options_.leader_file.c_str());
  if (up_) up_->close(kFarewell);
  if (listener_) listener_->close(kFarewell);
}

void JobRun::pump() {
  if (listener_) {
    for (const JobLink::Received& heard : listener_->take())
      leads_ ? hear_as_leader(heard) : on_listener_message(heard);
  }
  if (up_) {
    for (const JobLink::Received& heard : up_->take()) {
      if (up_) hear_as_member(heard);
    }
  }
  if (!leads_ && !up_ && member_.phase == MemberPhase::ready) seek_job();
  if (member_.phase == MemberPhase::searching) search();
  if (!leads_) return;
  replace_lost_machines();
  keep_time();
  invite_others();
}

// While it does not lead: one of a machine above this one may wait here until it is known who does.
void JobRun::on_listener_message(const JobLink::Received& heard) {
  if (!heard.message) {
    votes_.erase(heard.peer);
    return;
  }
  if (heard.message->kind == Kind::invite) return hear_invitation(*heard.message);
  if (heard.message->kind != Kind::hello) return;
  const bool may_lead = member_.phase == MemberPhase::searching && !up_ && roster_.electorate.now.contains(launcher_);
  if (const JobHello hello = hello_of(*heard.message); may_lead && hello.node > node_) {
    votes_[heard.peer] = hello;
    return;
  }
  redirect(heard.peer);
}

void JobRun::redirect(int peer) {
  const bool knows = up_ && is_welcome_ && !searches_since_;
  listener_->send(peer, {.kind = Kind::redirect, .numbers = {knows ? up_at_.port : 0}, .text = up_at_.address});
  listener_->drop(peer);
}

void JobRun::hear_redirect(const JobMessage& message) {
  if (is_welcome_ && !searches_since_) return;  // it has a leader
  why_not_found_ = "who listens there does not lead the job";
  up_.reset();
  const int64_t port = message.numbers[0];
  if (port < 1 || port > 65535 || message.text.empty()) return;
  invited_to_ = {.port = static_cast<int>(port), .address = message.text};
  searched_ = 0;  // there first
}

void JobRun::hear_invitation(const JobMessage& message) {
  const size_t bar = message.text.find('|');
  const std::optional<Membership> roster =
      bar == std::string::npos ? std::nullopt : unpack_roster(std::string_view(message.text).substr(bar + 1));
  const int64_t port = message.numbers[0];
  if (!roster || port < 1 || port > 65535) return;
  if (!leads_ && member_.phase != MemberPhase::searching) return;
  invited_to_ = {.port = static_cast<int>(port), .address = message.text.substr(0, bar)};
  if (leads_) lead({.kind = JobEvent::Kind::replaced, .node = node_});
}

void JobRun::refuse(int peer, const std::string& why) {
  listener_->send(peer, {.kind = Kind::refused, .text = why});
  listener_->drop(peer);
}

// Of those who wait at the door, and of its own.
bool JobRun::is_elected() const {
  Electorate newest = roster_.electorate;
  std::vector<int64_t> present = {launcher_};
  for (const auto& [peer, hello] : votes_) {
    present.push_back(hello.launcher);
    if (hello.roster.electorate.attempt > newest.attempt) newest = hello.roster.electorate;
  }
  return newest.now.contains(launcher_) && has_quorum(newest, present);
}

void JobRun::hear_end_of_link(const JobLink::Received& heard) {
  if (is_over()) return;
  if (searches_since_) {
    why_not_found_ = heard.why;
    return up_.reset();
  }
  const bool was_told_to = up_at_.address == options_.master_addr && up_at_.port == options_.master_port;
  if (!is_welcome_ && !was_told_to) {
    why_not_found_ = heard.why;  // it led once
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
  invited_to_.reset();
  if (searches_since_) {
    searches_since_.reset();
    say_("concord launch: found the launcher that leads the job");
    signal({.event = MemberEvent::found});
    for (const auto& [peer, hello] : std::exchange(votes_, {})) redirect(peer);
  }
  const int before = node_;
  if (!message.numbers.empty()) node_ = own_.node = static_cast<int>(message.numbers[0]);
  if (node_ >= options_.nnodes) {
    const std::string why = node_ == before ? "" : fmt::format("another machine has the place of machine {}: ", before);
    say_(fmt::format("concord launch: {}this is a spare machine, which waits for another one to be lost", why));
  } else if (node_ != before) {
    say_(fmt::format("concord launch: this spare machine is machine {} from now on", node_));
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

void JobRun::hear_as_member(const JobLink::Received& heard) {
  if (!heard.message) return hear_end_of_link(heard);
  const JobMessage& message = *heard.message;
  const std::vector<int64_t>& n = message.numbers;
  if (message.kind == Kind::refused && searches_since_) {
    why_not_found_ = message.text;  // a leader that has not noticed the loss yet says so, too
    return up_.reset();
  }
  if (message.kind == Kind::refused) throw ConfigError(message.text);
  if (message.kind == Kind::redirect) return hear_redirect(message);
  if (message.kind == Kind::welcome) {
    hear_welcome(message);
  } else if (message.kind == Kind::roster) {
    const std::optional<Membership> roster = unpack_roster(message.text);
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
  JobHello hello{.node = node_,
                 .node_rank = options_.node,
                 .nnodes = options_.nnodes,
                 .nproc = options_.nproc,
                 .max_restarts = options_.max_restarts,
                 .worlds = static_cast<int64_t>(options_.worlds.size()),
                 .launcher = launcher_,
                 .port = own_.port,
                 .saved_step = saved_step_,
                 .kept_step = kept_step_,
                 .address = own_.address,
                 .who = describe_this_process()};
  if (searches_since_) {
    hello.leader_has_ended = leader_has_ended_;
    hello.job = job_;
    hello.roster = roster_;
  }
  up_->send(JobLink::kLeader, hello_message(hello));
}

void JobRun::lose_leader(const std::string& why) {
  say_(
      fmt::format("concord launch: the launcher that leads the job is lost: {}; waiting up to {:g} s for the others to "
                  "elect another one, or for it to be started again, with --resume_from_checkpoint true",
                  why, patience().count()));
  signal({.event = MemberEvent::leader_lost});
  // An attempt that came with the loss is not begun any more: there are no ranks to wait for.
  if (std::exchange(start_, std::nullopt)) signal({.event = MemberEvent::ranks_ended});
}

// The others, where they could decide without the leader, may notice the loss later than this one.
Seconds JobRun::patience() const {
  std::vector<int64_t> others = roster_.electorate.now.launchers;
  std::erase(others, roster_.electorate.now.leader);
  return has_quorum(roster_.electorate, others) ? std::max(options_.rejoin_timeout, kFenceAfterSilence)
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
  connect(place, kSearchTime);
  if (!up_) return;
  // A launcher that waits for another to be elected sends its own voters on; otherwise neither may get enough votes.
  for (const auto& [peer, hello] : std::exchange(votes_, {})) redirect(peer);
}

void JobRun::signal(const MemberSignal& signal) {
  const MemberStep step = next_step(job_rules(), member_, signal);
  member_ = step.state;
  apply_command(step.order, signal);
}

void JobRun::apply_command(MemberOrder order, const MemberSignal& signal) {
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
    up_->set_heartbeat({.kind = Kind::alive, .numbers = {saved_step, kept_step}});
  }
}

}  // namespace concord
