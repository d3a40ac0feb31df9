// Transition tables of a job on several machines: a machine as the leader sees it, the job as the leader decides, a
// launcher, and a spare process (spare_state.h). `concord launch --print_rules` prints them.
#pragma once

#include <string>
#include <vector>

namespace concord {

// A machine, as the leader sees it.
enum class NodePhase { absent, ready, running, ending };
enum class NodeEvent { joined, started, failed, ended, left, lost };
// The job.
enum class JobPhase { gathering, running, stopping, over };
enum class JobCondition { none, all_here, too_few, asked, trouble, all_done, may_restart, gives_up };
enum class JobOrder { none, start, stop, finish };
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
  bool fence = false;  // its ranks may still run: no attempt starts until they must have exited
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

// An event without a row changes nothing.
struct JobRules {
  std::vector<NodeRow> node;
  std::vector<JobRow> job;
  std::vector<MemberRow> member;
  std::vector<SpareRow> spare;
};
const JobRules& job_rules();

std::string rules_table(const JobRules& rules);    // aligned text
std::string rules_mermaid(const JobRules& rules);  // a stateDiagram-v2 of mermaid

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
