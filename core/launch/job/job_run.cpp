#include "core/launch/job/job_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "core/base/config_error.h"
#include "core/mesh/store/rendezvous.h"

namespace concord {
namespace {

using Kind = JobMessage::Kind;
using Seconds = std::chrono::duration<double>;

constexpr std::chrono::seconds kFarewell{5};
constexpr std::chrono::milliseconds kSearchEvery{50};
constexpr std::chrono::milliseconds kConnectTime{1000};  // for a machine that does not answer

int64_t random_id() {
  std::random_device random;
  return 1 + static_cast<int64_t>((uint64_t{random()} << 16 ^ random()) & 0xFFFF'FFFF'FFFF);
}

}  // namespace

JobRun::JobRun(JobRunOptions options, std::unique_ptr<LeaderStore> store, Say say)
    : options_(std::move(options)),
      store_(std::move(store)),
      say_(std::move(say)),
      own_{.launcher = random_id(), .address = "", .port = 0, .who = describe_this_process()},
      node_(options_.node),
      job_(options_.job),
      searches_since_(Clock::now()) {
  if (!store_->leads()) return;
  own_.address = store_->own_address();
  if (options_.nnodes > 1) listen();
  signal({.event = MemberEvent::elected});
}

// The port stays the same while this launcher lives: the store names it.
void JobRun::listen() {
  own_.address = options_.local_address.empty() ? store_->own_address() : options_.local_address;
  listener_ = JobLink::serve(own_.address, options_.port, options_.token);
  own_.port = listener_->port();
  if (!options_.token.empty()) return;
  say_(
      fmt::format("concord launch: anyone who can reach {}:{} can disturb this job: {} is not set; set it to the same "
                  "random text on all machines",
                  own_.address, own_.port, kJobToken));
}

JobRun::~JobRun() {
  if (up_) up_->close(kFarewell);
  if (listener_) listener_->close(kFarewell);
  if (leads_ && is_over()) store_->resign();
}

void JobRun::pump() {
  if (listener_) {
    for (const JobLink::Received& received : listener_->take()) {
      leads_ ? on_listener_message(received) : listener_->drop(received.peer);
    }
  }
  if (up_) {
    for (const JobLink::Received& received : up_->take()) {
      if (up_) on_leader_message(received);
    }
  }
  if (member_.phase == MemberPhase::searching) search();
  if (leads_ && (is_deposed_ || !store_->leads()) && !is_over()) step_down();
  if (!leads_) return;
  replace_lost_machines();
  keep_time();
}

// Runs repeatedly while there are no ranks.
void JobRun::search() {
  const Clock::time_point now = Clock::now();
  if (store_->leads()) return signal({.event = MemberEvent::elected});
  if (now - searches_since_ >= patience()) return give_up();
  if (up_ || now < next_search_) return;
  next_search_ = now + kSearchEvery;
  if (const std::string problem = store_->problem(); !problem.empty()) {
    why_not_found_ = problem;
    if (!std::exchange(has_said_problem_, true)) say_(fmt::format("concord launch: {}; trying again", problem));
  }
  connect_to_leader();
}

void JobRun::connect_to_leader() {
  const std::optional<LeaderAddress> leader = store_->leader();
  if (!leader && may_campaign()) {
    if (!listener_) listen();
    return store_->campaign(own_);
  }
  if (!leader || leader->launcher == own_.launcher) return;
  up_ = JobLink::try_join(leader->address, leader->port, options_.token, kConnectTime, &why_not_found_);
  if (up_) send_hello();
}

// A spare machine has no ranks, and a leader needs one. At the start of a job machine 0 has the first chance, so that
// it usually gets rank 0. If the record of the job is missing, the job is over.
bool JobRun::may_campaign() {
  if (node_ >= options_.nnodes || (options_.local_address.empty() && store_->own_address().empty())) return false;
  const Membership membership = store_->membership();
  if (member_.attempt >= 0) return membership.attempt >= member_.attempt;
  return node_ == 0 || membership.attempt >= 0 || Clock::now() - searches_since_ >= store_->election_time();
}

Seconds JobRun::patience() const {
  if (!has_joined_) return options_.join_timeout;
  return std::max<Seconds>(options_.rejoin_timeout, 2 * store_->election_time());
}

void JobRun::give_up() {
  if (!has_joined_) {
    throw ConfigError(
        fmt::format("found no launcher that leads the job within {:g} s ({}); is it running, and do all "
                    "launchers have the same {}?",
                    options_.join_timeout.count(), why_not_found_,
                    store_->elects() ? "--rdzv_endpoint and --rdzv_id" : "--master_addr and --master_port"));
  }
  say_(
      fmt::format("concord launch: found no launcher that leads the job ({}); this one exits with code {}; start the "
                  "job again with --resume_from_checkpoint true",
                  why_not_found_, kExitRequeue));
  signal({.event = MemberEvent::gave_up});
}

void JobRun::on_leader_closed(const JobLink::Received& received) {
  if (is_over()) return;
  if (member_.phase != MemberPhase::searching) {
    return lose_leader("the launcher that leads the job is lost: " + received.why);
  }
  why_not_found_ = received.why;
  up_.reset();
  if (has_joined_ || store_->elects()) return;
  const LeaderAddress leader = store_->leader().value();
  throw ConfigError(
      fmt::format("the launcher at {}:{} did not accept this one: {}; all launchers of a job need the same {}, or none",
                  leader.address, leader.port, why_not_found_, kJobToken));
}

void JobRun::on_welcome(const JobMessage& message) {
  job_ = message.text;
  if (member_.phase == MemberPhase::searching) {
    if (has_joined_) say_("concord launch: found the launcher that leads the job");
    signal({.event = MemberEvent::found});
  }
  has_joined_ = true;
  const int before = node_;
  if (!message.numbers.empty()) node_ = static_cast<int>(message.numbers[0]);
  if (node_ >= options_.nnodes) {
    const std::string why = node_ == before ? "" : fmt::format("another machine has the place of machine {}: ", before);
    say_(fmt::format("concord launch: {}this is a spare machine, which waits for another one to be lost", why));
  } else if (node_ != before) {
    say_(fmt::format("concord launch: this spare machine is machine {} from now on", node_));
  }
}

void JobRun::on_start(const JobMessage& message) {
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

void JobRun::on_leader_message(const JobLink::Received& received) {
  if (!received.message) return on_leader_closed(received);
  const JobMessage& message = *received.message;
  const std::vector<int64_t>& n = message.numbers;
  if (message.kind == Kind::refused) {
    if (!has_joined_) throw ConfigError(message.text);
    why_not_found_ = message.text;  // a leader that has not noticed yet that this launcher was lost rejects it, too
    return up_.reset();
  }
  if (message.kind == Kind::welcome) {
    on_welcome(message);
  } else if (message.kind == Kind::start) {
    on_start(message);
  } else if (message.kind == Kind::stop) {
    say_(fmt::format("concord launch: the attempt ends: {}", message.text));
    if (n[1] != 0) order_ = AttemptOrder::wait;
    signal({.event = MemberEvent::stop, .attempt = static_cast<int>(n[0])});
  } else if (message.kind == Kind::finish) {
    if (n[0] != 0) say_(fmt::format("concord launch: the job exits with code {}: {}", n[0], message.text));
    signal({.event = MemberEvent::finish, .exit_code = static_cast<int>(n[0])});
  }
}

void JobRun::send_hello() {
  up_->send(JobLink::kLeader, hello_message({.node = node_,
                                             .node_rank = options_.node,
                                             .nnodes = options_.nnodes,
                                             .nproc = options_.nproc,
                                             .max_restarts = options_.max_restarts,
                                             .worlds = static_cast<int64_t>(options_.worlds.size()),
                                             .launcher = own_.launcher,
                                             .saved_step = saved_step_,
                                             .kept_step = kept_step_,
                                             .last_attempt = member_.attempt,
                                             .job = member_.attempt >= 0 ? job_ : "",
                                             .who = own_.who}));
}

void JobRun::lose_leader(const std::string& why) {
  const char* until = store_->elects() ? "a leader" : "it to be started again, with --resume_from_checkpoint true";
  say_(fmt::format("concord launch: {}; waiting up to {:g} s for {}", why, patience().count(), until));
  signal({.event = MemberEvent::leader_lost});
  // An attempt that was announced just before the loss is not started: there are no ranks to wait for.
  if (std::exchange(start_, std::nullopt)) signal({.event = MemberEvent::ranks_ended});
}

void JobRun::signal(const MemberSignal& signal) {
  const MemberStep step = next_step(job_rules(), member_, signal);
  member_ = step.state;
  apply_command(step.order, signal);
}

void JobRun::apply_command(MemberOrder order, const MemberSignal& signal) {
  switch (order) {
    case MemberOrder::none: return;
    case MemberOrder::start_ranks:  // the caller of take_start starts them
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
      why_not_found_ = "none has answered";
      return;
    case MemberOrder::lead: return begin_to_lead();
    case MemberOrder::tell_leaving: return to_leader({.kind = Kind::left, .numbers = {signal.exit_code - 128}});
  }
}

void JobRun::to_leader(const JobMessage& message) {
  if (leads_) return on_member_message(node_, message);
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
  // The leader decides after the end of an attempt, and has to know this by then.
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
