// One launcher's part in a job of several: carries out what the rules (job_state.h) say, over the link (job_link.h).
//
// The launcher calls pump() every few hundredths of a second, starts the ranks when take_start() gives it an attempt,
// does to them what order() says, and reports what becomes of them. Of the one that leads, at first that of machine 0,
// the leader is in here too. Every launcher listens at a port of its own, where the others find it when they have lost
// their leader: each asks those of the machines below its own, which keep its question as a vote until they are elected
// or have found a leader. One that is started anew asks where it was told to, and where a launcher that was elected has
// written down that it listens; any that does not lead says who does.
//
// Threads: the launcher's one. Nothing waits but the constructor, for the leader, and the destructor, for a moment.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/launch/job/attempt.h"
#include "core/launch/job/job_hello.h"
#include "core/launch/job/job_link.h"
#include "core/launch/job/job_state.h"
#include "core/launch/job/membership.h"
#include "core/mesh/store/master_port.h"

namespace concord {

struct JobRunOptions {
  int node = 0;  // from nnodes on: a spare machine, which waits for another one to be lost and takes its place
  int nnodes = 1;
  int nproc = 1;  // on each machine
  std::string master_addr = {};
  int master_port = 0;
  std::string leader_file = {};  // see LaunchOptions
  std::string token = {};        // empty: anyone who reaches the port can take part, which the leader says
  std::string job = {};          // its name; the leader's counts
  std::vector<int> worlds = {};  // see JobSettings
  int together = 1;
  int max_restarts = 0;
  bool kills_at_once = false;              // a stop kills the ranks; else they get SIGTERM first
  std::chrono::duration<double> grace{5};  // between SIGTERM and SIGKILL
  std::chrono::duration<double> join_timeout{600};
  std::chrono::duration<double> rejoin_timeout{60};
};

// An attempt to be run here.
struct AttemptStart {
  int attempt = 0;
  int node = 0;  // which machine this one is
  std::string store_address;
  int store_port = 0;
  int world = 0;
  NodeShare share;
  std::string job;
};

class JobRun {
 public:
  using Say = std::function<void(const std::string& line)>;
  // Waits: for the launcher that leads, at most join_timeout, or until |is_cancelled|. Throws ConfigError.
  JobRun(JobRunOptions options, Say say, const std::function<bool()>& is_cancelled);
  ~JobRun();
  JobRun(const JobRun&) = delete;
  JobRun& operator=(const JobRun&) = delete;

  void pump();
  bool is_over() const { return member_.phase == MemberPhase::over; }
  int exit_code() const { return member_.exit_code; }
  std::optional<AttemptStart> take_start() { return std::exchange(start_, std::nullopt); }
  AttemptOrder order() const { return order_; }

  void rank_failed(const NodeEnd& end, int rank, const std::string& how);
  void ranks_ended(const NodeEnd& end);
  void asked(int signal);  // while no ranks run
  void progress(int64_t saved_step, int64_t kept_step);

 private:
  using Clock = std::chrono::steady_clock;
  // A launcher that was silent may see that only when as much time has passed there; killing takes a moment.
  static constexpr std::chrono::duration<double> kFenceAfterSilence = JobLink::kPeerTimeout + std::chrono::seconds(3);

  void warn_of_strangers() const;
  void refuse(int peer, const std::string& why);
  std::string name_of(int node) const;  // "machine 1 (process 4711 on node3)"

  // A member's, of the leader too.
  void signal(const MemberSignal& signal);
  void apply_command(MemberOrder order, const MemberSignal& signal);
  void to_leader(const JobMessage& message);
  void seek_job();
  std::vector<RosterEntry> where_to_join() const;
  void connect(const RosterEntry& place, std::chrono::milliseconds limit);
  void say_hello();
  void hear_as_member(const JobLink::Received& heard);
  void hear_end_of_link(const JobLink::Received& heard);
  void hear_welcome(const JobMessage& message);
  void hear_start(const JobMessage& message);
  void on_listener_message(const JobLink::Received& heard);
  void hear_invitation(const JobMessage& message);
  void hear_redirect(const JobMessage& message);
  void redirect(int peer);
  void lose_leader(const std::string& why);
  void search();
  std::vector<RosterEntry> where_to_search() const;
  std::chrono::duration<double> patience() const;
  bool is_elected() const;

  // The leader's (job_run_leader.cpp).
  void begin_to_lead();
  void take_over();
  void hand_over();
  void write_leader_file();
  void hear_as_leader(const JobLink::Received& heard);
  void hear_spare_machine(int node, const JobLink::Received& heard);
  void take_message(int node, const JobMessage& message);
  void greet(int peer, JobHello hello);
  bool has_lost_its_place(const JobHello& hello) const;
  int free_spare_number() const;
  JobEvent joined(int node, const JobHello& hello);
  std::string why_refused(const JobHello& hello) const;  // empty: it is welcome
  void lead(const JobEvent& event);
  void carry_out(const JobAction& action);
  void tell_changes(const JobState& before, const JobEvent& event);
  JobMessage start_message(const JobAction& action) const;
  void send_roster();
  void invite_others();
  void replace_lost_machines();
  void keep_time();
  std::vector<std::string> absent_nodes() const;  // their names

  const JobRunOptions options_;
  const Say say_;
  const int64_t launcher_;             // its number, by which voters know each other
  std::unique_ptr<JobLink> listener_;  // where others find this launcher; none in a job of one machine
  std::unique_ptr<JobLink> up_;        // to the leader, or to whom it votes for; none in the leader
  RosterEntry up_at_;                  // where that listens
  RosterEntry own_;                    // where the door is
  Membership roster_;
  bool leads_ = false;

  int node_;  // of a spare machine: its place, once it has one
  MemberState member_;
  AttemptOrder order_ = AttemptOrder::none;
  std::optional<AttemptStart> start_;
  std::string job_;
  NodeEnd end_;           // what tell_failed and tell_ended tell
  int failed_rank_ = -1;  // of tell_failed
  std::string failed_how_;
  bool is_welcome_ = false;
  Clock::time_point joins_until_;
  std::optional<Clock::time_point> searches_since_;  // for its leader
  Clock::time_point next_search_;
  bool leader_has_ended_ = false;          // its connection, that is; it was not silent
  size_t searched_ = 0;                    // of where_to_search
  std::optional<RosterEntry> invited_to_;  // a leader, by itself or by who was asked for it
  std::map<int, JobHello> votes_;          // by peer: what those said whom it keeps waiting
  std::string why_not_found_;
  int64_t saved_step_ = -1, kept_step_ = -1;

  // The leader's.
  JobSettings settings_;
  JobState state_;
  std::map<int, int> peers_;                       // by machine
  std::map<int, std::string> names_;               // by machine, also of those that are lost
  std::map<int, int64_t> node_ranks_;              // by machine: what the launcher that has its place was started with
  std::map<int, int> spares_;                      // peers of spare machines that wait, by their number
  std::map<int, RosterEntry> listener_addresses_;  // by machine
  std::unique_ptr<JobLink> invitation_;            // on its way
  bool has_written_leader_ = false;
  Clock::time_point next_invitation_;
  size_t invited_ = 0;
  std::map<int, Clock::time_point> fences_;
  std::optional<Clock::time_point> waits_since_, stops_since_;
  bool has_said_waiting_ = false;
  std::optional<HeldPort> store_port_;
  std::string cause_;        // of the end of the attempt
  bool is_leading_ = false;  // events that come meanwhile are queued
  std::deque<JobEvent> events_;
};

}  // namespace concord
