#include "core/launch/job/job_state.h"

#include <algorithm>

namespace concord {
namespace {

bool has_ranks(const NodeView& node) { return node.phase == NodePhase::running || node.phase == NodePhase::ending; }

bool any_has_ranks(const JobState& state) { return std::ranges::any_of(state.nodes, has_ranks); }

// Returns false if there is no row for it.
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

// The last attempt that has started; -1: none.
int latest_attempt(const JobState& state) {
  return state.phase == JobPhase::gathering ? state.policy.attempts - 1 : state.policy.attempts;
}

// A new leader continues the job after the latest attempt that one of its launchers knows. Machines that have not
// joined yet may still run ranks of it.
void adopt(JobState* state, const JobEvent& event) {
  if (event.last_attempt < 0) return;
  if (state->phase == JobPhase::gathering && event.last_attempt > latest_attempt(*state)) {
    state->policy.attempts = event.last_attempt + 1;
    for (NodeView& node : state->nodes) node.fenced = node.fenced || node.phase == NodePhase::absent;
  }
  state->end.saved_step = std::max(state->end.saved_step, event.saved_step);
  state->end.kept_step = std::max(state->end.kept_step, event.kept_step);
  // It ran this machine's ranks of the latest attempt, and they have exited.
  NodeView& node = state->nodes[static_cast<size_t>(event.node)];
  if (event.last_attempt == latest_attempt(*state)) node.fenced = false;
}

void note(const JobRules& rules, const JobSettings& settings, JobState* state, const JobEvent& event,
          std::vector<JobAction>* actions) {
  using Kind = JobEvent::Kind;
  NodeView& node = state->nodes.at(static_cast<size_t>(event.node));
  const bool is_current = event.attempt == state->policy.attempts;
  switch (event.kind) {
    case Kind::joined:
      if (!apply(rules, &node, NodeEvent::joined)) return;
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
    case Kind::lost: return lose(rules, state, event.node);
    case Kind::progress:
      state->end.saved_step = std::max(state->end.saved_step, event.saved_step);
      state->end.kept_step = std::max(state->end.kept_step, event.kept_step);
      return;
    case Kind::fence_over: node.fenced = false; return;
    case Kind::waited:
      for (NodeView& each : state->nodes) each.missed = each.missed || each.phase == NodePhase::absent;
      return;
    case Kind::stop_overdue:
      // The leader's own ranks exit within a bounded time (attempt.h).
      for (int i = 0; i < static_cast<int>(state->nodes.size()); ++i) {
        if (i == settings.leader || !has_ranks(state->nodes[static_cast<size_t>(i)])) continue;
        actions->push_back({.kind = JobAction::Kind::drop, .node = i});
        lose(rules, state, i);
      }
      return;
  }
}

// Decides what follows an attempt. A rank with a faulty device is left out if the job can run without it.
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

// Indices of the machines, starting at the leader's, which serves the store.
std::vector<size_t> in_order(const JobSettings& settings, size_t nodes) {
  std::vector<size_t> order;
  for (size_t i = 0; i < nodes; ++i) order.push_back((static_cast<size_t>(settings.leader) + i) % nodes);
  return order;
}

// Returns the condition that |state| meets, and in |after| the state in which its order is carried out, if any.
JobCondition condition_of(const JobSettings& settings, const JobState& state, JobState* after) {
  switch (state.phase) {
    case JobPhase::gathering: {
      if (state.asked_signal != 0) {
        *after = state;
        after->exit_code = 128 + state.asked_signal;
        return JobCondition::asked;
      }
      const bool is_fenced = std::ranges::any_of(state.nodes, &NodeView::fenced);
      if (is_fenced || is_waiting_for_nodes(state)) return JobCondition::none;
      *after = state;
      const std::optional<Assignment> assignment = assign_ranks(settings, state.nodes);
      if (assignment) {
        after->assignment = *assignment;
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

}  // namespace

JobState first_state(const JobSettings& settings, int last_attempt) {
  JobState state;
  state.nodes.resize(settings.slots.size());
  state.policy.max_restarts = settings.max_restarts;
  state.policy.attempts = last_attempt + 1;
  for (NodeView& node : state.nodes) node.fenced = last_attempt >= 0;
  return state;
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
    const auto multiple = static_cast<size_t>(settings.colocated_ranks);
    free[i].resize(free[i].size() / multiple * multiple);
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
  // A stop may arrive after the attempt that it is for has ended.
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

}  // namespace concord
