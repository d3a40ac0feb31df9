// One launcher's part in a job of several: executes the rules of job_state.h over the connections of job_link.h.
//
// The launcher calls pump() every few hundredths of a second, starts the ranks when take_start() returns an attempt,
// does to them what order() returns, and reports their exits. The launcher that leads has the leader in here, too. The
// others find it through a LeaderStore, at the start and after they have lost it. If the store elects leaders, a
// launcher that finds none campaigns, and continues the job once it holds the lease; one that loses the lease kills its
// ranks and becomes a member.
//
// Threads: launcher thread only. pump() may wait for a machine that does not answer, while no ranks run; the
// destructor waits for connections to close.
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
#include "core/launch/job/leader_store.h"
#include "core/mesh/store/master_port.h"

namespace concord {

struct JobRunOptions {
  int node = 0;  // nnodes or more: a spare machine, which waits for another one to be lost and replaces it
  int nnodes = 1;
  int nproc = 1;                   // on each machine
  std::string local_address = {};  // at which the others reach this launcher; empty: as the store sees it
  int port = 0;                    // at which a leader listens; 0: any
  std::string token = {};          // empty: anyone who reaches the port can take part, which the launcher warns of
  std::string job = {};            // its name; the leader's counts
  std::vector<int> worlds = {};    // see JobSettings
  int colocated_ranks = 1;
  int max_restarts = 0;
  bool kills_at_once = false;              // a stop kills the ranks; else they get SIGTERM first
  std::chrono::duration<double> grace{5};  // between SIGTERM and SIGKILL
  std::chrono::duration<double> join_timeout{600};
  std::chrono::duration<double> rejoin_timeout{60};
};

// An attempt to run here.
struct AttemptStart {
  int attempt = 0;
  int node = 0;  // index of this machine
  std::string store_address;
  int store_port = 0;
  int world = 0;
  NodeShare share;
  std::string job;
};

class JobRun {
 public:
  using Say = std::function<void(const std::string& line)>;
  JobRun(JobRunOptions options, std::unique_ptr<LeaderStore> store, Say say);
  ~JobRun();
  JobRun(const JobRun&) = delete;
  JobRun& operator=(const JobRun&) = delete;

  // Throws ConfigError if the leader rejects this launcher, or none is found within join_timeout.
  void pump();
  bool is_over() const { return member_.phase == MemberPhase::over; }
  int exit_code() const { return member_.exit_code; }
  std::optional<AttemptStart> take_start() { return std::exchange(start_, std::nullopt); }
  AttemptOrder order() const { return order_; }

  void rank_failed(const NodeEnd& end, int rank, const std::string& how);
  void ranks_ended(const NodeEnd& end);
  void asked(int signal);  // call only while no ranks run
  void progress(int64_t saved_step, int64_t kept_step);

 private:
  using Clock = std::chrono::steady_clock;
  // A launcher that was silent may notice that only after the same time; killing takes a moment.
  static constexpr std::chrono::duration<double> kFenceAfterSilence = JobLink::kPeerTimeout + std::chrono::seconds(3);

  void listen();
  std::string name_of(int node) const;  // "machine 1 (process 4711 on node3)"

  // The member, which every launcher is.
  void signal(const MemberSignal& signal);
  void apply_command(MemberOrder order, const MemberSignal& signal);
  void to_leader(const JobMessage& message);
  void send_hello();
  void on_leader_message(const JobLink::Received& received);
  void on_leader_closed(const JobLink::Received& received);
  void on_welcome(const JobMessage& message);
  void on_start(const JobMessage& message);
  void lose_leader(const std::string& why);
  void search();
  void give_up();
  void connect_to_leader();
  std::chrono::duration<double> patience() const;
  bool may_campaign();

  // The leader (job_run_leader.cpp).
  void begin_to_lead();
  void step_down();
  void on_listener_message(const JobLink::Received& received);
  void on_spare_machine_message(int node, const JobLink::Received& received);
  void on_member_message(int node, const JobMessage& message);
  void on_hello(int peer, JobHello hello);
  bool has_lost_its_place(const JobHello& hello) const;
  int free_spare_number() const;
  void adopt_job(int node, const JobHello& hello);
  std::string rejection(const JobHello& hello) const;  // empty: it is welcome
  void lead(const JobEvent& event);
  void carry_out(const JobAction& action);
  void report_changes(const JobState& before, const JobEvent& event);
  void report_attempt();
  bool record_attempt();
  JobMessage start_message(const JobAction& action) const;
  void replace_lost_machines();
  void keep_time();
  std::vector<std::string> absent_nodes() const;  // their names

  const JobRunOptions options_;
  const std::unique_ptr<LeaderStore> store_;
  const Say say_;
  LeaderAddress own_;                  // its launcher id; and where it listens, if it does
  std::unique_ptr<JobLink> listener_;  // null in launchers that have never led or campaigned
  std::unique_ptr<JobLink> up_;        // to the leader; null in the leader
  bool leads_ = false;

  int node_;  // a spare machine has another one once it has replaced a machine
  MemberState member_;
  AttemptOrder order_ = AttemptOrder::none;
  std::optional<AttemptStart> start_;
  std::string job_;
  NodeEnd end_;           // content of tell_failed and tell_ended
  int failed_rank_ = -1;  // content of tell_failed
  std::string failed_how_;
  bool has_joined_ = false;  // a leader has accepted it, or it has led
  Clock::time_point searches_since_;
  Clock::time_point next_search_;
  bool has_said_problem_ = false;
  std::string why_not_found_;
  int64_t saved_step_ = -1, kept_step_ = -1;

  // State of the leader; the maps are by machine.
  JobSettings settings_;
  JobState state_;
  std::map<int, int> peers_;
  std::map<int, int> spares_;          // peers of spare machines
  std::map<int, std::string> names_;   // also of machines that are lost
  std::map<int, int64_t> launchers_;   // ids of launchers that have joined
  std::map<int, int64_t> node_ranks_;  // their --node_rank
  std::map<int, Clock::time_point> fences_;
  std::optional<Clock::time_point> waits_since_, stops_since_;
  bool has_said_waiting_ = false;
  std::optional<HeldPort> store_port_;
  std::string cause_;        // why the attempt ends
  bool is_deposed_ = false;  // the store rejected an attempt: this launcher must step down
  bool is_leading_ = false;  // an event is being processed: further ones are queued
  std::deque<JobEvent> events_;
};

}  // namespace concord
