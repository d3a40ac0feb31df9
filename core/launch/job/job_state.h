// State machine of a job with one launcher per machine: what the leader and the launchers do after each event, and the
// states of spare processes (spare_state.h).
//
// One launcher leads: that of machine 0, or the one that holds the lease in etcd (leader_store.h). Every launcher,
// including the leader, is a member: it starts ranks when the leader tells it to, reports when one has failed and when
// all have exited, and stops them when the leader tells it to. A member that loses its leader kills its ranks and
// searches for a leader, which continues the job. The leader starts an attempt on all machines once every rank of the
// previous one has exited, stops it everywhere when a rank or a machine is lost, and ends the job. The functions below
// look events up in the tables of job_rules.h; job_run.h executes the resulting actions.
//
// Example:
//   JobSettings settings{.slots = {2, 2}, .worlds = {4}, .max_restarts = 1};
//   JobState job = first_state(settings);
//   JobStep step = next_step(job_rules(), settings, job, {.kind = JobEvent::Kind::joined, .node = 0});
//
// Threads: pure functions of plain values; nothing here waits or reads a clock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/launch/job/job_rules.h"
#include "core/launch/job/restart_policy.h"

namespace concord {

struct JobSettings {
  std::vector<int> slots;   // processes that each machine can run
  std::vector<int> worlds;  // world sizes that the job can run with, in descending order; the first is all ranks
  int colocated_ranks = 1;  // each machine runs a multiple of this number of ranks
  int max_restarts = 0;
  int leader = 0;  // the machine whose launcher leads
};

// The part of an attempt that one machine runs.
struct NodeShare {
  int first_rank = 0;
  std::vector<int> slots;  // rank first_rank + i runs in slots[i]; empty: this machine waits
  bool operator==(const NodeShare&) const = default;
};
struct Assignment {
  int world = 0;
  std::vector<NodeShare> nodes;
  bool operator==(const Assignment&) const = default;
};

// How the ranks of one machine ended.
struct NodeEnd {
  bool succeeded = false;
  bool has_failed = false;  // a rank failed on its own, and not because it was told to exit
  int failed_slot = -1;     // slot of that rank
  int exit_code = 1;        // exit code of that rank
  int stop_signal = 0;      // see AttemptEnd
  bool stopped_as_asked = false;
  bool can_start_again = true;
  bool operator==(const NodeEnd&) const = default;
};

struct JobEvent {
  enum class Kind { joined, failed, ended, left, lost, progress, fence_over, waited, stop_overdue };
  Kind kind{};
  int node = 0;
  int attempt = 0;          // failed, ended: the attempt that they are about
  NodeEnd end = {};         // failed, ended
  int signal = 0;           // left
  int last_attempt = -1;    // joined: the last attempt in which this launcher ran ranks, which have exited; -1: none
  int64_t saved_step = -1;  // progress, joined: see AttemptEnd
  int64_t kept_step = -1;
};

struct NodeView {
  NodePhase phase = NodePhase::absent;
  bool fenced = false;
  bool missed = false;         // it did not come in time: the job continues without it until it comes
  std::vector<int> bad_slots;  // slots whose device is faulty, until the launcher is started again
};

struct JobState {
  JobPhase phase = JobPhase::gathering;
  std::vector<NodeView> nodes;
  Assignment assignment;  // ranks of the current attempt, or of the last one
  RestartPolicy policy;   // policy.attempts is the index of the current attempt, or of the next one if none runs
  AttemptEnd end;         // how the attempt ended, as far as it is known
  bool has_trouble = false;
  int bad_node = -1, bad_slot = -1;  // where the first failure was
  bool has_lost_node = false;
  int asked_signal = 0;  // a launcher without ranks received this signal
  int exit_code = 0;     // valid once the job is over
};

struct JobAction {
  enum class Kind {
    start,
    stop,
    finish,
    drop
  };  // drop: close the connection, after which the launcher kills its ranks
  Kind kind{};
  int node = 0;
  int attempt = 0;
  bool gently = false;  // stop: the ranks have agreed to exit, and only need time for it
  int exit_code = 0;    // finish
};

struct JobStep {
  JobState state;
  std::vector<JobAction> actions;
};

// The state of a leader that has just begun. With |last_attempt| it continues a job whose attempts up to that one were
// started by another leader, and every machine may still run ranks of it.
JobState first_state(const JobSettings& settings, int last_attempt = -1);
JobStep next_step(const JobRules& rules, const JobSettings& settings, JobState state, const JobEvent& event);

// Assigns ranks to the ready machines, starting at the leader's, with the largest of settings.worlds that fits.
// Returns nullopt if none fits, or if the leader's machine, which serves the store, would have no rank.
std::optional<Assignment> assign_ranks(const JobSettings& settings, const std::vector<NodeView>& nodes);

// Whether the leader waits for a machine that may still come.
bool is_waiting_for_nodes(const JobState& state);

struct MemberState {
  MemberPhase phase = MemberPhase::searching;
  int attempt = -1;
  int exit_code = 0;  // valid once it is over
};
struct MemberSignal {
  MemberEvent event{};
  int attempt = 0;    // start, stop
  int exit_code = 0;  // finish: that of the job; asked: 128 + signal
};
struct MemberStep {
  MemberState state;
  MemberOrder order = MemberOrder::none;
};
MemberStep next_step(const JobRules& rules, MemberState state, const MemberSignal& signal);

}  // namespace concord
