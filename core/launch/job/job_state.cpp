#include "core/launch/job/job_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace concord {
namespace {

bool has_ranks(const NodeView& node) { return node.phase == NodePhase::running || node.phase == NodePhase::ending; }

bool any_has_ranks(const JobState& state) { return std::ranges::any_of(state.nodes, has_ranks); }

// False where no row says anything about it.
bool apply(const JobRules& rules, NodeView* node, NodeEvent event) {
  for (const NodeRow& row : rules.node) {
    if (row.phase != node->phase || row.event != event) continue;
    node->phase = row.next;
    node->fenced = node->fenced || row.fence;
    return true;
  }
  return false;
}

void note_trouble(JobState* state, int exit_code) {
  if (!state->has_trouble) state->end.exit_code = exit_code;
  state->has_trouble = true;
}

// The first failure is the cause; later ones follow from it.
void note_failure(JobState* state, int node, const NodeEnd& end) {
  if (!state->has_trouble) {
    state->bad_node = node;
    state->bad_slot = end.failed_slot;
  }
  note_trouble(state, end.exit_code);
}

void note_end(JobState* state, int node, const NodeEnd& end) {
  if (end.has_failed) note_failure(state, node, end);
  if (!end.succeeded) note_trouble(state, end.exit_code);
  if (state->end.stop_signal == 0) state->end.stop_signal = end.stop_signal;
  state->end.stopped_as_asked = state->end.stopped_as_asked && (end.succeeded || end.stopped_as_asked);
  state->end.can_start_again = state->end.can_start_again && end.can_start_again;
}

void note_lost(JobState* state) {
  note_trouble(state, 1);
  state->has_lost_node = true;
  state->end.stopped_as_asked = false;
}

void lose(const JobRules& rules, JobState* state, int node) {
  NodeView& view = state->nodes[static_cast<size_t>(node)];
  const bool had_ranks = has_ranks(view);
  if (apply(rules, &view, NodeEvent::lost) && had_ranks) note_lost(state);
}

// Those that it does not see any more may elect another leader, which waits only so long before it starts its ranks.
void end_own_ranks_without_quorum(const JobSettings& settings, const JobState& state, std::vector<JobAction>* actions) {
  const NodeView& own = state.nodes[static_cast<size_t>(settings.leader)];
  if (!has_ranks(own) || has_quorum(settings, state)) return;
  actions->push_back({.kind = JobAction::Kind::kill, .node = settings.leader, .attempt = state.policy.attempts});
}

void leave(const JobRules& rules, JobState* state, const JobEvent& event) {
  NodeView& view = state->nodes[static_cast<size_t>(event.node)];
  const bool had_ranks = has_ranks(view);
  if (!apply(rules, &view, NodeEvent::left)) return;
  view.missed = true;
  if (state->phase == JobPhase::gathering) state->asked_signal = event.signal;
  if (!had_ranks) return;
  note_trouble(state, 1);  // it had not seen the start yet
  if (state->end.stop_signal == 0) state->end.stop_signal = event.signal;
}

// A new leader goes on with the job that its launchers were in, as the one that knows the newest attempt has it. Those
// that it has not heard of yet may have ranks of it.
void adopt(JobState* state, const JobEvent& event) {
  const int attempt = event.electorate.attempt;
  if (state->phase == JobPhase::gathering && attempt > state->electorate.attempt) {
    state->electorate = event.electorate;
    state->heir = event.heir;
    state->agreed.clear();
    state->policy.attempts = attempt + 1;
    for (NodeView& node : state->nodes) node.fenced = node.fenced || node.phase == NodePhase::absent;
  }
  if (attempt < 0) return;
  state->end.saved_step = std::max(state->end.saved_step, event.saved_step);
  state->end.kept_step = std::max(state->end.kept_step, event.kept_step);
  NodeView& node = state->nodes[static_cast<size_t>(event.node)];
  if (state->electorate.now.contains(event.launcher)) node.fenced = false;  // its ranks, and nobody else's, were there
}

void agree(JobState* state, int64_t launcher, std::vector<JobAction>* actions) {
  Electorate& electorate = state->electorate;
  state->agreed.push_back(launcher);
  if (electorate.before.empty() || !has_quorum(electorate, state->agreed)) return;
  electorate.before.clear();
  for (size_t i = 0; i < state->nodes.size(); ++i) {
    if (state->nodes[i].phase == NodePhase::absent) continue;
    actions->push_back({.kind = JobAction::Kind::agreed, .node = static_cast<int>(i), .attempt = electorate.attempt});
  }
}

void note(const JobRules& rules, const JobSettings& settings, JobState* state, const JobEvent& event,
          std::vector<JobAction>* actions) {
  using Kind = JobEvent::Kind;
  NodeView& node = state->nodes.at(static_cast<size_t>(event.node));
  const bool is_current = event.attempt == state->policy.attempts;
  switch (event.kind) {
    case Kind::joined:
      if (!apply(rules, &node, NodeEvent::joined)) return;
      node.launcher = event.launcher;
      node.missed = false;
      node.bad_slots.clear();
      return adopt(state, event);
    case Kind::failed:
      if (is_current && apply(rules, &node, NodeEvent::failed)) note_failure(state, event.node, event.end);
      return;
    case Kind::ended:
      if (is_current && apply(rules, &node, NodeEvent::ended)) note_end(state, event.node, event.end);
      return;
    case Kind::left: return leave(rules, state, event);
    case Kind::lost: lose(rules, state, event.node); return end_own_ranks_without_quorum(settings, *state, actions);
    case Kind::progress:
      state->end.saved_step = std::max(state->end.saved_step, event.saved_step);
      state->end.kept_step = std::max(state->end.kept_step, event.kept_step);
      return;
    case Kind::fence_over: node.fenced = false; return;
    case Kind::waited:
      for (NodeView& each : state->nodes) each.missed = each.missed || each.phase == NodePhase::absent;
      return;
    case Kind::stop_overdue:
      // Not the leader's own, which are ended in a bounded time (attempt.h).
      for (int i = 0; i < static_cast<int>(state->nodes.size()); ++i) {
        if (i == settings.leader || !has_ranks(state->nodes[static_cast<size_t>(i)])) continue;
        actions->push_back({.kind = JobAction::Kind::drop, .node = i});
        lose(rules, state, i);
      }
      return end_own_ranks_without_quorum(settings, *state, actions);
    case Kind::agreed:
      if (event.attempt == state->electorate.attempt) agree(state, node.launcher, actions);
      return;
    case Kind::replaced: state->is_replaced = state->electorate.attempt < 0 || !has_quorum(settings, *state); return;
  }
}

// What follows the attempt that has ended. A rank whose device is at fault is left out where the job can do without.
RestartPolicy::Next after_attempt(const JobSettings& settings, JobState* state) {
  if (state->end.exit_code == kExitBadDevice && state->bad_slot >= 0) {
    std::vector<NodeView> nodes = state->nodes;
    nodes[static_cast<size_t>(state->bad_node)].bad_slots.push_back(state->bad_slot);
    if (assign_ranks(settings, nodes)) {
      state->nodes = std::move(nodes);
      state->end.exit_code = 1;
    }
  }
  RestartPolicy::Next next = state->policy.after(state->end);
  if (!next.restart && state->has_lost_node && state->end.stop_signal == 0) next.exit_code = kExitRequeue;
  return next;
}

// Machines from the leader's on, the first of which serves the store.
std::vector<size_t> in_order(const JobSettings& settings, size_t nodes) {
  std::vector<size_t> order;
  for (size_t i = 0; i < nodes; ++i) order.push_back((static_cast<size_t>(settings.leader) + i) % nodes);
  return order;
}

// Of the attempt that begins now.
Electorate electorate_of(const JobSettings& settings, const JobState& state) {
  Electorate electorate{.attempt = state.policy.attempts,
                        .now = {.leader = state.nodes[static_cast<size_t>(settings.leader)].launcher}};
  for (const size_t i : in_order(settings, state.nodes.size())) {
    if (state.nodes[i].phase == NodePhase::absent || electorate.now.launchers.size() == Voters::kMost) continue;
    electorate.now.launchers.push_back(state.nodes[i].launcher);
  }
  if (state.electorate.attempt < 0) return electorate;
  electorate.before = state.electorate.before;
  electorate.before.push_back(state.electorate.now);
  std::erase(electorate.before, electorate.now);
  return electorate;
}

// Of |state|; |after| is what the state becomes where there is one.
JobCondition condition_of(const JobSettings& settings, const JobState& state, JobState* after) {
  switch (state.phase) {
    case JobPhase::gathering: {
      if (state.asked_signal != 0) {
        *after = state;
        after->exit_code = 128 + state.asked_signal;
        return JobCondition::asked;
      }
      if (state.is_replaced) {
        *after = state;
        return JobCondition::replaced;
      }
      const bool is_fenced = std::ranges::any_of(state.nodes, &NodeView::fenced);
      if (is_fenced || is_waiting_for_nodes(state)) return JobCondition::none;
      *after = state;
      const std::optional<Assignment> assignment = assign_ranks(settings, state.nodes);
      if (assignment && has_quorum(settings, state)) {
        after->assignment = *assignment;
        after->electorate = electorate_of(settings, state);
        after->agreed.clear();
        after->heir = 0;
        const AttemptEnd before = state.end;
        after->end = {.succeeded = true,
                      .stopped_as_asked = true,
                      .saved_step = before.saved_step,
                      .kept_step = before.kept_step};
        after->has_trouble = after->has_lost_node = false;
        after->bad_node = after->bad_slot = -1;
        return JobCondition::all_here;
      }
      after->exit_code = state.policy.attempts > 0 ? kExitRequeue : 1;
      return JobCondition::too_few;
    }
    case JobPhase::running:
      if (!state.has_trouble && any_has_ranks(state)) return JobCondition::none;
      *after = state;
      return state.has_trouble ? JobCondition::trouble : JobCondition::all_done;
    case JobPhase::stopping: {
      if (any_has_ranks(state)) return JobCondition::none;
      *after = state;
      after->end.succeeded = false;
      after->end.stopped_as_asked = state.end.stopped_as_asked && state.end.stop_signal != 0;
      const RestartPolicy::Next next = after_attempt(settings, after);
      after->exit_code = next.exit_code;
      return next.restart ? JobCondition::may_restart : JobCondition::gives_up;
    }
    case JobPhase::over: return JobCondition::none;
  }
  return JobCondition::none;
}

void carry_out(const JobRules& rules, const JobSettings& settings, JobOrder order, JobState* state,
               std::vector<JobAction>* actions) {
  if (order == JobOrder::hand_over) {
    actions->push_back({.kind = JobAction::Kind::hand_over, .node = settings.leader});
    return;
  }
  for (size_t i = 0; i < state->nodes.size(); ++i) {
    NodeView& node = state->nodes[i];
    JobAction action{.node = static_cast<int>(i), .attempt = state->policy.attempts};
    if (order == JobOrder::start && !state->assignment.nodes[i].slots.empty()) {
      action.kind = JobAction::Kind::start;
      apply(rules, &node, NodeEvent::started);
    } else if (order == JobOrder::stop && node.phase == NodePhase::running) {
      action.kind = JobAction::Kind::stop;
      action.gently = state->end.stop_signal != 0 && state->end.stopped_as_asked;
    } else if (order == JobOrder::finish && (action.node == settings.leader || node.phase != NodePhase::absent)) {
      action.kind = JobAction::Kind::finish;
      action.exit_code = state->exit_code;
    } else {
      continue;
    }
    actions->push_back(action);
  }
}

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
              {JobPhase::gathering, JobCondition::replaced, JobPhase::over, JobOrder::hand_over},
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
                     row.fence ? "wait until its ranks are gone for certain" : "");
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

JobState first_state(const JobSettings& settings) {
  JobState state;
  state.nodes.resize(settings.slots.size());
  state.policy.max_restarts = settings.max_restarts;
  return state;
}

bool Voters::contains(int64_t launcher) const { return std::ranges::find(launchers, launcher) != launchers.end(); }

bool has_quorum(const Electorate& electorate, const std::vector<int64_t>& present, int64_t heir) {
  const auto is_present = [&](int64_t one) { return std::ranges::find(present, one) != present.end(); };
  const auto decides = [&](const Voters& voters) {
    const auto all = static_cast<int64_t>(voters.launchers.size());
    const int64_t here = std::ranges::count_if(voters.launchers, is_present);
    return 2 * here > all || (2 * here == all && is_present(voters.leader)) ||
           (here == all - 1 && voters.contains(heir) && !is_present(heir));
  };
  return decides(electorate.now) && std::ranges::all_of(electorate.before, decides);
}

bool has_quorum(const JobSettings& settings, const JobState& state) {
  std::vector<int64_t> present;
  for (const NodeView& node : state.nodes) {
    if (node.phase != NodePhase::absent) present.push_back(node.launcher);
  }
  if (state.electorate.attempt < 0) return 2 * present.size() > settings.slots.size();
  return has_quorum(state.electorate, present, state.heir);
}

bool is_waiting_for_nodes(const JobState& state) {
  return state.phase == JobPhase::gathering && std::ranges::any_of(state.nodes, [](const NodeView& node) {
           return node.phase == NodePhase::absent && !node.missed;
         });
}

std::optional<Assignment> assign_ranks(const JobSettings& settings, const std::vector<NodeView>& nodes) {
  std::vector<std::vector<int>> free(nodes.size());
  int available = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].phase != NodePhase::ready) continue;
    for (int slot = 0; slot < settings.slots[i]; ++slot) {
      if (std::ranges::find(nodes[i].bad_slots, slot) == nodes[i].bad_slots.end()) free[i].push_back(slot);
    }
    const auto together = static_cast<size_t>(settings.together);
    free[i].resize(free[i].size() / together * together);
    available += static_cast<int>(free[i].size());
  }
  const auto world = std::ranges::find_if(settings.worlds, [&](int size) { return size <= available; });
  if (world == settings.worlds.end() || free[static_cast<size_t>(settings.leader)].empty()) return std::nullopt;
  Assignment assignment{.world = *world, .nodes = std::vector<NodeShare>(nodes.size())};
  int next = 0;
  for (const size_t i : in_order(settings, nodes.size())) {
    free[i].resize(std::min(free[i].size(), static_cast<size_t>(*world - next)));
    assignment.nodes[i] = {.first_rank = next, .slots = free[i]};
    next += static_cast<int>(free[i].size());
  }
  return assignment;
}

JobStep next_step(const JobRules& rules, const JobSettings& settings, JobState state, const JobEvent& event) {
  JobStep step;
  note(rules, settings, &state, event, &step.actions);
  for (;;) {
    JobState after;
    const JobCondition condition = condition_of(settings, state, &after);
    const auto row = std::ranges::find_if(rules.job, [&](const JobRow& each) {
      return condition != JobCondition::none && each.phase == state.phase && each.when == condition;
    });
    if (row == rules.job.end()) break;
    state = std::move(after);
    state.phase = row->next;
    carry_out(rules, settings, row->order, &state, &step.actions);
  }
  step.state = std::move(state);
  return step;
}

MemberStep next_step(const JobRules& rules, MemberState state, const MemberSignal& signal) {
  MemberStep step{.state = state};
  // A stop may cross the end of the attempt that it is for.
  if (signal.event == MemberEvent::stop && signal.attempt != state.attempt) return step;
  for (const MemberRow& row : rules.member) {
    if (row.phase != state.phase || row.event != signal.event) continue;
    step.state.phase = row.next;
    step.order = row.order;
    if (signal.event == MemberEvent::start) step.state.attempt = signal.attempt;
    if (row.next == MemberPhase::over) {
      step.state.exit_code = signal.event == MemberEvent::gave_up ? kExitRequeue : signal.exit_code;
    }
    return step;
  }
  return step;
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
  constexpr const char* kNames[] = {"-",       "all_here", "too_few",     "asked",   "replaced",
                                    "trouble", "all_done", "may_restart", "gives_up"};
  return kNames[static_cast<size_t>(condition)];
}
const char* to_string(JobOrder order) {
  constexpr const char* kNames[] = {"-", "start", "stop", "finish", "hand_over"};
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
