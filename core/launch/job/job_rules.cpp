#include "core/launch/job/job_rules.h"

#include <fmt/format.h>

namespace concord {
namespace {

std::string row_text(const char* phase, const char* event, const char* next, const std::string& does) {
  std::string text = fmt::format("  {:<10} {:<13} {:<10} {}", phase, event, next, does);
  text.erase(text.find_last_not_of(' ') + 1);
  return text + "\n";
}

}  // namespace

const JobRules& job_rules() {
  static const JobRules rules = {
      .node = {{NodePhase::absent, NodeEvent::joined, NodePhase::ready},
               {NodePhase::ready, NodeEvent::started, NodePhase::running},
               {NodePhase::ready, NodeEvent::left, NodePhase::absent},
               {NodePhase::ready, NodeEvent::lost, NodePhase::absent},
               {NodePhase::running, NodeEvent::failed, NodePhase::ending},
               {NodePhase::running, NodeEvent::ended, NodePhase::ready},
               {NodePhase::running, NodeEvent::left, NodePhase::absent},
               {NodePhase::running, NodeEvent::lost, NodePhase::absent, true},
               {NodePhase::ending, NodeEvent::ended, NodePhase::ready},
               {NodePhase::ending, NodeEvent::lost, NodePhase::absent, true}},
      .job = {{JobPhase::gathering, JobCondition::all_here, JobPhase::running, JobOrder::start},
              {JobPhase::gathering, JobCondition::too_few, JobPhase::over, JobOrder::finish},
              {JobPhase::gathering, JobCondition::asked, JobPhase::over, JobOrder::finish},
              {JobPhase::running, JobCondition::trouble, JobPhase::stopping, JobOrder::stop},
              {JobPhase::running, JobCondition::all_done, JobPhase::over, JobOrder::finish},
              {JobPhase::stopping, JobCondition::may_restart, JobPhase::gathering, JobOrder::none},
              {JobPhase::stopping, JobCondition::gives_up, JobPhase::over, JobOrder::finish}},
      .member = {{MemberPhase::ready, MemberEvent::start, MemberPhase::running, MemberOrder::start_ranks},
                 {MemberPhase::ready, MemberEvent::finish, MemberPhase::over, MemberOrder::none},
                 {MemberPhase::ready, MemberEvent::asked, MemberPhase::over, MemberOrder::tell_leaving},
                 {MemberPhase::ready, MemberEvent::leader_lost, MemberPhase::searching, MemberOrder::find_leader},
                 {MemberPhase::running, MemberEvent::rank_failed, MemberPhase::ending, MemberOrder::tell_failed},
                 {MemberPhase::running, MemberEvent::ranks_ended, MemberPhase::ready, MemberOrder::tell_ended},
                 {MemberPhase::running, MemberEvent::stop, MemberPhase::ending, MemberOrder::stop_ranks},
                 {MemberPhase::running, MemberEvent::leader_lost, MemberPhase::leaving, MemberOrder::kill_ranks},
                 {MemberPhase::ending, MemberEvent::ranks_ended, MemberPhase::ready, MemberOrder::tell_ended},
                 {MemberPhase::ending, MemberEvent::leader_lost, MemberPhase::leaving, MemberOrder::kill_ranks},
                 {MemberPhase::leaving, MemberEvent::ranks_ended, MemberPhase::searching, MemberOrder::find_leader},
                 {MemberPhase::searching, MemberEvent::found, MemberPhase::ready, MemberOrder::none},
                 {MemberPhase::searching, MemberEvent::elected, MemberPhase::ready, MemberOrder::lead},
                 {MemberPhase::searching, MemberEvent::gave_up, MemberPhase::over, MemberOrder::none},
                 {MemberPhase::searching, MemberEvent::asked, MemberPhase::over, MemberOrder::none}},
      .spare = {{SparePhase::absent, SpareEvent::wanted, SparePhase::loading, SpareOrder::start},
                {SparePhase::loading, SpareEvent::loaded, SparePhase::ready, SpareOrder::none},
                {SparePhase::loading, SpareEvent::taken, SparePhase::absent, SpareOrder::hand_over},
                {SparePhase::loading, SpareEvent::died, SparePhase::broken, SpareOrder::none},
                {SparePhase::ready, SpareEvent::taken, SparePhase::absent, SpareOrder::hand_over},
                {SparePhase::ready, SpareEvent::died, SparePhase::broken, SpareOrder::none},
                {SparePhase::broken, SpareEvent::renewed, SparePhase::absent, SpareOrder::none}}};
  return rules;
}

std::string rules_table(const JobRules& rules) {
  std::string text = "a machine, as the leader sees it\n" + row_text("phase", "event", "next", "then");
  for (const NodeRow& row : rules.node) {
    text += row_text(to_string(row.phase), to_string(row.event), to_string(row.next),
                     row.fence ? "wait until its ranks must have exited" : "");
  }
  text += "\nthe job, decided by the leader\n" + row_text("phase", "condition", "next", "order");
  for (const JobRow& row : rules.job) {
    text += row_text(to_string(row.phase), to_string(row.when), to_string(row.next), to_string(row.order));
  }
  text += "\na launcher\n" + row_text("phase", "event", "next", "order");
  for (const MemberRow& row : rules.member) {
    text += row_text(to_string(row.phase), to_string(row.event), to_string(row.next), to_string(row.order));
  }
  text += "\na spare process\n" + row_text("phase", "event", "next", "order");
  for (const SpareRow& row : rules.spare) {
    text += row_text(to_string(row.phase), to_string(row.event), to_string(row.next), to_string(row.order));
  }
  return text;
}

std::string rules_mermaid(const JobRules& rules) {
  std::string text = "stateDiagram-v2\n";
  const auto arrow = [&](const char* machine, const char* from, const char* to, const std::string& label) {
    text += fmt::format("    {0}_{1} --> {0}_{2}: {3}\n", machine, from, to, label);
  };
  const auto label = [](const char* event, const char* order) {
    return std::string_view(order) == "-" ? std::string(event) : fmt::format("{} / {}", event, order);
  };
  text += "  state machine {\n";
  for (const NodeRow& row : rules.node) {
    arrow("machine", to_string(row.phase), to_string(row.next), label(to_string(row.event), row.fence ? "fence" : "-"));
  }
  text += "  }\n  state job {\n";
  for (const JobRow& row : rules.job) {
    arrow("job", to_string(row.phase), to_string(row.next), label(to_string(row.when), to_string(row.order)));
  }
  text += "  }\n  state launcher {\n";
  for (const MemberRow& row : rules.member) {
    arrow("launcher", to_string(row.phase), to_string(row.next), label(to_string(row.event), to_string(row.order)));
  }
  text += "  }\n  state spare {\n";
  for (const SpareRow& row : rules.spare) {
    arrow("spare", to_string(row.phase), to_string(row.next), label(to_string(row.event), to_string(row.order)));
  }
  return text + "  }\n";
}

const char* to_string(NodePhase phase) {
  constexpr const char* kNames[] = {"absent", "ready", "running", "ending"};
  return kNames[static_cast<size_t>(phase)];
}
const char* to_string(NodeEvent event) {
  constexpr const char* kNames[] = {"joined", "started", "failed", "ended", "left", "lost"};
  return kNames[static_cast<size_t>(event)];
}
const char* to_string(JobPhase phase) {
  constexpr const char* kNames[] = {"gathering", "running", "stopping", "over"};
  return kNames[static_cast<size_t>(phase)];
}
const char* to_string(JobCondition condition) {
  constexpr const char* kNames[] = {"-",       "all_here", "too_few",     "asked",
                                    "trouble", "all_done", "may_restart", "gives_up"};
  return kNames[static_cast<size_t>(condition)];
}
const char* to_string(JobOrder order) {
  constexpr const char* kNames[] = {"-", "start", "stop", "finish"};
  return kNames[static_cast<size_t>(order)];
}
const char* to_string(MemberPhase phase) {
  constexpr const char* kNames[] = {"ready", "running", "ending", "leaving", "searching", "over"};
  return kNames[static_cast<size_t>(phase)];
}
const char* to_string(MemberEvent event) {
  constexpr const char* kNames[] = {"start",       "stop",  "finish", "rank_failed", "ranks_ended",
                                    "leader_lost", "asked", "found",  "elected",     "gave_up"};
  return kNames[static_cast<size_t>(event)];
}
const char* to_string(MemberOrder order) {
  constexpr const char* kNames[] = {"-",          "start_ranks",  "stop_ranks",  "kill_ranks", "tell_failed",
                                    "tell_ended", "tell_leaving", "find_leader", "lead"};
  return kNames[static_cast<size_t>(order)];
}

const char* to_string(SparePhase phase) {
  constexpr const char* kNames[] = {"absent", "loading", "ready", "broken"};
  return kNames[static_cast<size_t>(phase)];
}

const char* to_string(SpareEvent event) {
  constexpr const char* kNames[] = {"wanted", "loaded", "taken", "died", "renewed"};
  return kNames[static_cast<size_t>(event)];
}

const char* to_string(SpareOrder order) {
  constexpr const char* kNames[] = {"-", "start", "hand_over"};
  return kNames[static_cast<size_t>(order)];
}

}  // namespace concord
