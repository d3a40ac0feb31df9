// A job of several launchers, one on each machine, as data: what its leader and its members do after each event, and
// its spare processes (spare_state.h).
//
// The launcher of machine 0 leads at first. Every launcher, that one too, is a member: it starts ranks when it is told
// to, says when one has failed and when all have ended, and ends them when it is told to. One that has lost its leader
// ends its ranks and looks for one: the launchers of the last attempt that still see each other elect that of the
// lowest machine (has_quorum), or find a leader that was started again; either goes on with the job that they were in.
// The leader decides: it starts an attempt on all machines once nothing of the one before is left anywhere, stops it
// everywhere when a rank or a machine is lost, and ends the job. One that has lost too many starts nothing, and hands
// over to whom the others have elected. Three tables say so (job_rules): a machine as the leader sees it, the job, a
// member. The functions below look events up in them; job_run.h carries out what they answer, and a test walks through
// every order of messages, deaths, cuts and time-outs of a small job.
//
// Example:
//   JobSettings settings{.slots = {2, 2}, .worlds = {4}, .max_restarts = 1};
//   JobState job = first_state(settings);
//   JobStep step = next_step(job_rules(), settings, job, {.kind = JobEvent::Kind::joined, .node = 0});
//
// Pure functions of plain values: nothing here waits or knows the time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/launch/job/restart_policy.h"

namespace concord {

// A machine, as the leader sees it.
enum class NodePhase { absent, ready, running, ending };
enum class NodeEvent { joined, started, failed, ended, left, lost };
// The job.
enum class JobPhase { gathering, running, stopping, over };
enum class JobCondition { none, all_here, too_few, asked, replaced, trouble, all_done, may_restart, gives_up };
enum class JobOrder { none, start, stop, finish, hand_over };
// A launcher.
enum class MemberPhase { ready, running, ending, leaving, searching, over };
enum class MemberEvent { start, stop, finish, rank_failed, ranks_ended, leader_lost, asked, found, elected, gave_up };
enum class MemberOrder {
  none,
  start_ranks,
  stop_ranks,
  kill_ranks,
  tell_failed,
  tell_ended,
  tell_leaving,
  find_leader,
  lead
};

// A spare process of a launcher. broken: it has died, and is not started again in this attempt.
enum class SparePhase { absent, loading, ready, broken };
enum class SpareEvent { wanted, loaded, taken, died, renewed };
enum class SpareOrder { none, start, hand_over };

struct NodeRow {
  NodePhase phase;
  NodeEvent event;
  NodePhase next;
  bool fence = false;  // its ranks may still run: nothing is started until they cannot any more
};
struct JobRow {
  JobPhase phase;
  JobCondition when;
  JobPhase next;
  JobOrder order;
};
struct MemberRow {
  MemberPhase phase;
  MemberEvent event;
  MemberPhase next;
  MemberOrder order;
};

struct SpareRow {
  SparePhase phase;
  SpareEvent event;
  SparePhase next;
  SpareOrder order;
};

// What is in no row changes nothing.
struct JobRules {
  std::vector<NodeRow> node;
  std::vector<JobRow> job;
  std::vector<MemberRow> member;
  std::vector<SpareRow> spare;
};
const JobRules& job_rules();

std::string rules_table(const JobRules& rules);    // for people
std::string rules_mermaid(const JobRules& rules);  // a drawing: mermaid's stateDiagram-v2

// Launchers that decide who leads, each by a number of its own.
struct Voters {
  static constexpr size_t kMost = 100;  // of more launchers the first, from the leader on
  int64_t leader = 0;
  std::vector<int64_t> launchers = {};
  bool contains(int64_t launcher) const;
  bool operator==(const Voters&) const = default;
};

// Who decides after an attempt: the launchers that were there when it began. Where they are not those of the attempt
// before, both decide until enough of both know it (a joint consensus, as Raft has it): else some who have not heard of
// the change could elect one leader and the others another one.
struct Electorate {
  int attempt = -1;  // none has begun
  Voters now = {};
  std::vector<Voters> before = {};  // who decide as well, until the change is agreed on
  bool operator==(const Electorate&) const = default;
};
// Whether those who are |present| may go on with the job. They are more than half of the voters, or half of them with
// the leader, so that two groups without a common launcher are never both a quorum. |heir| is the number of a launcher
// that has ended for certain, because somebody who is present has its address: it counts where all others are present.
bool has_quorum(const Electorate& electorate, const std::vector<int64_t>& present, int64_t heir = 0);

struct JobSettings {
  std::vector<int> slots;   // processes that each machine can run
  std::vector<int> worlds;  // how many ranks the job can run with, in descending order; the first is all
  int together = 1;         // ranks that have to be on one machine: each runs a multiple of it
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
  bool has_failed = false;  // a rank, on its own; not because it was told to end
  int failed_slot = -1;     // which
  int exit_code = 1;        // of it
  int stop_signal = 0;      // as AttemptEnd has it
  bool stopped_as_asked = false;
  bool can_start_again = true;
  bool operator==(const NodeEnd&) const = default;
};

struct JobEvent {
  enum class Kind { joined, failed, ended, left, lost, progress, fence_over, waited, stop_overdue, agreed, replaced };
  Kind kind{};
  int node = 0;
  int attempt = 0;             // of failed, ended and agreed
  NodeEnd end = {};            // of failed and ended
  int signal = 0;              // of left
  int64_t launcher = 0;        // of joined: its number
  int64_t heir = 0;            // of joined: of a launcher that had the leader's address, see has_quorum
  Electorate electorate = {};  // of joined: of the newest attempt that it knows; its ranks of it have ended
  int64_t saved_step = -1;     // of progress and joined: as AttemptEnd has them
  int64_t kept_step = -1;
};

struct NodeView {
  NodePhase phase = NodePhase::absent;
  int64_t launcher = 0;  // that is there, or was last
  bool fenced = false;
  bool missed = false;         // it was waited for in vain: the job goes on without it until it comes
  std::vector<int> bad_slots;  // whose device is at fault, until its launcher is started anew
};

struct JobState {
  JobPhase phase = JobPhase::gathering;
  std::vector<NodeView> nodes;
  Assignment assignment;  // of the attempt that runs or ran last
  RestartPolicy policy;   // policy.attempts is the number of the attempt that runs or is next
  AttemptEnd end;         // of the attempt, as far as it is known
  bool has_trouble = false;
  int bad_node = -1, bad_slot = -1;  // where the first failure was
  bool has_lost_node = false;
  Electorate electorate;        // of the newest attempt
  std::vector<int64_t> agreed;  // launchers that know it
  int64_t heir = 0;             // see has_quorum
  bool is_replaced = false;     // others have elected another leader
  int asked_signal = 0;         // a launcher that had no ranks was asked to stop
  int exit_code = 0;            // once it is over
};

struct JobAction {
  // agreed: the launchers of this attempt alone decide. kill: the ranks of the leader's own machine, at once. drop: end
  // the connection, which ends its ranks. hand_over: end all of them.
  enum class Kind { start, agreed, stop, kill, finish, drop, hand_over };
  Kind kind{};
  int node = 0;
  int attempt = 0;
  bool gently = false;  // of stop: the ranks have agreed to end, and only get the time for it
  int exit_code = 0;    // of finish
};

struct JobStep {
  JobState state;
  std::vector<JobAction> actions;
};

JobState first_state(const JobSettings& settings);
JobStep next_step(const JobRules& rules, const JobSettings& settings, JobState state, const JobEvent& event);

// The ranks of the machines that are there, from the leader's on, of the largest of settings.worlds that there is room
// for; nothing where there is none, or where the leader's machine, which serves the store, would have none.
std::optional<Assignment> assign_ranks(const JobSettings& settings, const std::vector<NodeView>& nodes);

// Whether the leader waits for a machine that may still come.
bool is_waiting_for_nodes(const JobState& state);

// Whether it may start an attempt. The first one needs more than half of all machines: launchers that are started anew
// know nothing of a job that others are in.
bool has_quorum(const JobSettings& settings, const JobState& state);

struct MemberState {
  MemberPhase phase = MemberPhase::ready;
  int attempt = -1;
  int exit_code = 0;  // once it is over
};
struct MemberSignal {
  MemberEvent event{};
  int attempt = 0;    // of start and stop
  int exit_code = 0;  // of finish; of asked: 128 + signal
};
struct MemberStep {
  MemberState state;
  MemberOrder order = MemberOrder::none;
};
MemberStep next_step(const JobRules& rules, MemberState state, const MemberSignal& signal);

const char* to_string(NodePhase phase);
const char* to_string(NodeEvent event);
const char* to_string(JobPhase phase);
const char* to_string(JobCondition condition);
const char* to_string(JobOrder order);
const char* to_string(MemberPhase phase);
const char* to_string(MemberEvent event);
const char* to_string(MemberOrder order);
const char* to_string(SparePhase phase);
const char* to_string(SpareEvent event);
const char* to_string(SpareOrder order);

}  // namespace concord
