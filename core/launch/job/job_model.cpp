#include "core/launch/job/job_model.h"

#include <algorithm>
#include <bit>

namespace concord::testing_job {
namespace {

using EventKind = JobEvent::Kind;

class Key {
 public:
  explicit Key(const World& world) {
    add(world.faults, world.restarts, world.leaders, world.returned, world.elections, world.ended, world.is_asked,
        world.has_fault, world.has_begun, world.processes.size());
    for (const Process& process : world.processes) add_process(process);
    for (const Broken& broken : world.broken) {
      add(broken.leader, broken.events.size());
      for (const JobEvent& event : broken.events) add_event(event);
    }
  }
  const WorldKey& get() const { return key_; }

 private:
  template <class... Numbers>
  void add(Numbers... numbers) {
    (add_one(static_cast<uint64_t>(numbers)), ...);
  }
  void add_list(const std::vector<int64_t>& list) {
    add(list.size());
    for (const int64_t each : list) add(each);
  }
  void add_electorate(const Electorate& electorate) {
    add(electorate.attempt, electorate.now.leader, electorate.before.size());
    add_list(electorate.now.launchers);
    for (const Voters& voters : electorate.before) {
      add(voters.leader);
      add_list(voters.launchers);
    }
  }
  void add_event(const JobEvent& event) {
    add(event.kind, event.node, event.attempt, event.signal, event.launcher, event.heir, event.end.succeeded,
        event.end.has_failed);
    if (event.kind != EventKind::joined) return;
    add_electorate(event.electorate);
  }
  void add_process(const Process& process) {
    add(process.node, process.number, process.is_alive, process.is_cut_off, process.may_heal, process.member.phase,
        process.member.attempt, process.member.exit_code, process.attempt.first, process.attempt.second,
        process.has_ranks, process.is_noticed, process.is_ending, process.leads, process.up, process.is_vote,
        process.ranks.size(), process.to_leader.size(), process.to_member.size());
    for (const Rank rank : process.ranks) add(rank);
    add_electorate(process.known);
    for (const JobEvent& event : process.to_leader) add_event(event);
    for (const Message& message : process.to_member) {
      add(message.signal.event, message.signal.attempt, message.signal.exit_code, message.share, message.is_agreed);
      add_electorate(message.electorate);
    }
    if (process.leads) add_job(process.job);
  }
  void add_job(const JobState& job) {
    add(job.phase, job.policy.attempts, job.policy.failures, job.has_trouble, job.bad_node, job.bad_slot,
        job.has_lost_node, job.asked_signal, job.exit_code, job.end.stop_signal, job.end.stopped_as_asked,
        job.end.can_start_again, job.end.exit_code, job.assignment.world);
    for (const NodeView& node : job.nodes) {
      add(node.phase, node.launcher, node.fenced, node.missed, node.bad_slots.size());
      for (const int slot : node.bad_slots) add(slot);
    }
    add_electorate(job.electorate);
    add(job.heir);
    add_list(job.agreed);
  }
  void add_one(uint64_t number) {
    key_.one = std::rotl((key_.one ^ number) * 0x9E37'79B9'7F4A'7C15, 29);
    key_.other = std::rotl((key_.other + number) * 0xC2B2'AE3D'27D4'EB4F, 31) ^ (key_.other >> 17);
  }
  WorldKey key_{.one = 0x1234, .other = 0x5678};
};

}  // namespace

WorldKey key_of(const World& world) { return Key(world).get(); }

Process Model::joining(World* world, int node, int64_t leader) {
  Process process;
  process.node = node;
  process.number = ++world->numbers;
  process.up = leader == 0 ? process.number : leader;
  process.to_leader.push_back({.kind = EventKind::joined, .node = node, .launcher = process.number});
  return process;
}

Process Model::leading(World* world, const JobSettings& settings) {
  Process process = joining(world, 0, 0);
  process.leads = true;
  process.job = first_state(settings);
  return process;
}

void Model::visit(World world) {
  if (!problem_.empty()) return;
  const WorldKey own = key_of(world);
  const auto [entry, is_new] = seen_.try_emplace(own, true);
  if (!is_new) {
    if (entry->second) fail("it goes round in a circle");  // on the way that led here
    return;
  }
  check_state(world);
  const std::vector<Choice> choices = choices_of(world);
  if (choices.empty()) check_end(world);
  for (const Choice& choice : choices) {
    World next = &choice == &choices.back() ? std::move(world) : world;
    trail_.push_back(&choice);
    choice.apply(&next, next.find(choice.process));
    visit(std::move(next));
    trail_.pop_back();
    if (!problem_.empty()) return;
  }
  seen_[own] = false;
}

void Model::fail(const std::string& what) {
  if (!problem_.empty()) return;
  problem_ = what + " after:";
  for (const Choice* choice : trail_) {
    problem_ += std::string(" ") + choice->name + " " + std::to_string(choice->process) + ";";
  }
}

void Model::check_state(const World& world) {
  std::set<std::pair<int, int64_t>> running;
  for (const Process& process : world.processes) {
    if (process.any_running()) running.insert(process.attempt);
    if (!process.leads) continue;
    const int changes = world.returned + world.elections;
    if (process.job.policy.attempts > 1 + settings_.max_restarts + changes) fail("more restarts than allowed");
    if (process.job.phase == JobPhase::running) worlds_.insert(process.job.assignment.world);
  }
  if (running.size() > 1) fail("two attempts run at once");
}

void Model::check_end(const World& world) {
  for (const Process& process : world.processes) {
    if (process.any_running()) fail("ranks are left over");
    if (process.is_alive) fail("a launcher waits for ever");
  }
  exit_codes_.insert(world.ended);
  if (world.returned > 0) codes_of_returned_.insert(world.ended);
  if (world.elections > 0) codes_of_elected_.insert(world.ended);
  // 1: ranks that ran already were killed before they had saved.
  const bool is_only_asked = patient_ && world.ended >= 0 && world.is_asked && !world.has_fault && world.elections == 0;
  if (is_only_asked && !std::set{0, 1, 128 + 15}.contains(world.ended)) {
    fail("it was asked to stop, and does something else");
  }
}

std::vector<Model::Choice> Model::choices_of(const World& world) {
  std::vector<Choice> choices;
  for (const Process& process : world.processes) {
    add_rank_choices(world, process, &choices);
    add_process_choices(world, process, &choices);
    if (process.is_alive && process.member.phase == MemberPhase::searching) add_search(world, process, &choices);
    if (is_leading(process)) add_leader_choices(world, process, &choices);
  }
  for (size_t i = 0; i < world.broken.size(); ++i) {
    choices.push_back({"a loss is seen by", world.broken[i].leader, [this, i](World* w, Process* leader) {
                         const JobEvent event = w->broken[i].events.front();
                         w->broken[i].events.erase(w->broken[i].events.begin());
                         if (w->broken[i].events.empty()) w->broken.erase(w->broken.begin() + static_cast<int64_t>(i));
                         lead(w, leader, event);
                       }});
  }
  add_leader_return(world, &choices);
  // Who is cut off knows nothing of what the others do meanwhile.
  const bool is_patient = patient_ && std::ranges::none_of(world.processes, &Process::is_cut_off);
  if (is_patient && !choices.empty()) return choices;
  for (const Process& process : world.processes) {
    if (!process.is_alive || process.member.phase != MemberPhase::searching) continue;
    choices.push_back(
        {"gives up", process.number, [this](World* w, Process* p) { tell(w, p, {{MemberEvent::gave_up}}); }});
  }
  if (is_patient && !choices.empty()) return choices;
  for (const Process& process : world.processes) {
    if (!is_leading(process) || !is_waiting_for_nodes(process.job)) continue;
    // One that was started anew waits for longer than launchers need to notice that the one before it is lost.
    const bool is_early =
        world.has_begun && process.job.electorate.attempt < 0 &&
        std::ranges::any_of(world.processes, [&](const Process& p) { return is_unsettled(world, p); });
    if (is_early) continue;
    choices.push_back(
        {"has waited", process.number, [this](World* w, Process* p) { lead(w, p, {.kind = EventKind::waited}); }});
  }
  return choices;
}

bool Model::is_leading(const Process& process) {
  return process.is_alive && process.leads && process.job.phase != JobPhase::over;
}

bool Model::can_reach(const Process& one, const Process& other) {
  return one.number != other.number && one.is_alive && other.is_alive && !one.is_cut_off && !other.is_cut_off;
}

// It has still to see, or to do, what takes a moment only: the times of fences are chosen so that it has by then.
bool Model::is_unsettled(const World& world, const Process& process) {
  if (!process.is_alive) return process.any_running();
  const auto is_own = [&](const Broken& broken) { return broken.leader == process.number; };
  return !process.to_member.empty() || (process.is_ending && process.any_running()) ||
         (process.leads && std::ranges::any_of(world.broken, is_own));
}

// What the dead one has left is gone by then: the kernel kills its ranks before anybody can start a launcher.
void Model::add_leader_return(const World& world, std::vector<Choice>* choices) const {
  const auto is_left = [](const Process& p) { return p.node == 0 && (p.is_alive || p.any_running()); };
  if (world.leaders == 0 || std::ranges::any_of(world.processes, is_left)) return;
  choices->push_back({"leader comes back", 0, [this](World* next, Process*) {
                        --next->leaders;
                        ++next->returned;
                        Process leader = leading(next, settings_);
                        for (const Process& p : next->processes) {
                          if (p.node == 0) leader.heir = p.number;
                        }
                        std::erase_if(next->processes, [](const Process& p) { return p.node == 0; });
                        next->processes.push_back(leader);
                      }});
}

bool Model::can_finish(const World& world, const Process& one) const {
  return !patient_ || std::ranges::none_of(world.processes, [&](const Process& process) {
    return process.attempt == one.attempt && (std::ranges::find(process.ranks, Rank::failed) != process.ranks.end() ||
                                              std::ranges::find(process.ranks, Rank::killed) != process.ranks.end());
  });
}

void Model::add_rank_choices(const World& world, const Process& process, std::vector<Choice>* choices) {
  const auto add = [&](const char* name, auto body) { choices->push_back({name, process.number, body}); };
  if (process.any_running() && !process.is_alive) {
    add("kernel kills ranks of", [](World*, Process* p) { kill_ranks(p); });
  }
  if (!process.is_alive) return;
  for (size_t rank = 0; rank < process.ranks.size(); ++rank) {
    if (process.ranks[rank] != Rank::running) continue;
    // Of ranks that are alike it does not matter which one.
    if (rank > 0 && process.ranks[rank - 1] == Rank::running) continue;
    if (!process.is_ending && can_finish(world, process))
      add("rank finishes of", [rank](World*, Process* p) { p->ranks[rank] = Rank::done; });
    if (world.faults > 0 && settings_.slots.size() == 2) {  // of three machines it is the same
      add("rank dies of", [rank](World* w, Process* p) {
        use_fault(w);
        p->ranks[rank] = Rank::failed;
      });
    }
  }
  const bool has_failed = std::ranges::find(process.ranks, Rank::failed) != process.ranks.end();
  if (process.has_ranks && has_failed && !process.is_noticed && !process.is_ending) {
    add("notices", [this](World* w, Process* p) {
      p->is_noticed = p->is_ending = true;
      tell(w, p, {{MemberEvent::rank_failed}});
      if (p->member.phase == MemberPhase::running) fail("a launcher does not tell that a rank has failed");
    });
  }
  if (process.is_ending && process.any_running()) {
    add("ends its ranks", [](World*, Process* p) { kill_ranks(p); });
  }
  const bool waits = has_failed && !process.is_noticed && !process.is_ending;
  if (process.has_ranks && !process.any_running() && !waits) {
    add("has no ranks left", [this](World* w, Process* p) {
      p->has_ranks = false;
      tell(w, p, {{MemberEvent::ranks_ended}});
    });
  }
}

void Model::add_process_choices(const World& world, const Process& process, std::vector<Choice>* choices) {
  const auto add = [&](const char* name, auto body) { choices->push_back({name, process.number, body}); };
  if (!process.is_alive) return;
  if (!process.to_leader.empty() && !process.is_vote) {
    add("is heard", [this](World* w, Process* p) {
      const JobEvent event = p->to_leader.front();
      p->to_leader.erase(p->to_leader.begin());
      Process* leader = w->find(p->up);
      lead(w, leader, event);
      leader = w->find(leader->number);
      const bool is_current = event.attempt == leader->job.policy.attempts;
      if (event.kind == EventKind::failed && is_current && leader->job.phase == JobPhase::running) {
        fail("the leader does not stop an attempt that has failed");
      }
    });
  }
  if (!process.to_member.empty()) {
    add("hears", [this](World* w, Process* p) {
      const Message message = p->to_member.front();
      p->to_member.erase(p->to_member.begin());
      tell(w, p, message);
    });
  }
  if (process.is_cut_off && process.may_heal) {
    add("is connected again", [](World*, Process* p) { p->is_cut_off = p->may_heal = false; });
  }
  if (world.faults == 0) return;
  add("dies", [](World* w, Process* p) {
    use_fault(w);
    end_process(w, p);
  });
  for (const bool heals : {false, true}) {
    if (process.is_cut_off || (!heals && !patient_)) continue;       // who is not patient does not wait for it
    if (settings_.slots.size() == 2 && process.node == 0) continue;  // it is the same
    add(heals ? "is cut off for a while" : "is cut off", [heals](World* w, Process* p) {
      use_fault(w);
      p->is_cut_off = true;
      p->may_heal = heals;
      disconnect(w, p, false);
    });
  }
  if (process.member.phase == MemberPhase::ready || process.member.phase == MemberPhase::searching) {
    add("is asked to stop", [this](World* w, Process* p) {
      --w->faults;
      w->is_asked = true;
      const int64_t number = p->number;
      tell(w, p, {{.event = MemberEvent::asked, .exit_code = 128 + 15}});
      if (w->find(number)->is_alive) fail("a launcher does not stop when it is asked to");
    });
  }
}

void Model::add_search(const World& world, const Process& process, std::vector<Choice>* choices) {
  if (process.up != 0) return;
  for (const Process& other : world.processes) {
    if (!can_reach(process, other)) continue;
    const int64_t number = other.number;
    // A leader that has not noticed the loss yet refuses it.
    const bool accepts =
        is_leading(other) && other.job.nodes[static_cast<size_t>(process.node)].phase == NodePhase::absent &&
        std::ranges::none_of(world.processes,
                             [&](const Process& p) { return p.up == number && !p.is_vote && p.node == process.node; });
    if (accepts) {
      choices->push_back({"finds a leader", process.number, [this, number](World* w, Process* p) {
                            join(p, number);
                            tell(w, p, {{MemberEvent::found}});
                            release_votes(w, *p);
                          }});
    }
    if (other.member.phase == MemberPhase::searching && other.node < process.node && other.up == 0) {
      choices->push_back({"votes", process.number, [number](World*, Process* p) {
                            p->up = number;
                            p->is_vote = true;
                          }});
    }
  }
  if (is_elected(world, process)) {
    choices->push_back(
        {"is elected", process.number, [this](World* w, Process* p) { tell(w, p, {{MemberEvent::elected}}); }});
  }
}

bool Model::is_vote_for(const Process& voter, const Process& process) {
  return voter.is_vote && voter.up == process.number;
}

bool Model::is_elected(const World& world, const Process& process) {
  Electorate newest = process.known;
  std::vector<int64_t> present = {process.number};
  for (const Process& p : world.processes) {
    if (!is_vote_for(p, process)) continue;
    if (p.known.attempt > newest.attempt) newest = p.known;
    present.push_back(p.number);
  }
  return newest.now.contains(process.number) && has_quorum(newest, present);
}

void Model::join(Process* process, int64_t leader) {
  process->up = leader;
  process->is_vote = false;
  process->to_member.clear();
  process->to_leader = {
      {.kind = EventKind::joined, .node = process->node, .launcher = process->number, .electorate = process->known}};
}

void Model::release_votes(World* world, const Process& process) {
  for (Process& p : world->processes) {
    if (!is_vote_for(p, process)) continue;
    p.up = 0;
    p.is_vote = false;
  }
}

JobSettings Model::settings_of(const Process& leader) const {
  JobSettings settings = settings_;
  settings.leader = leader.node;
  return settings;
}

void Model::add_leader_choices(const World& world, const Process& leader, std::vector<Choice>* choices) {
  const auto add = [&](const char* name, const JobEvent& event) {
    choices->push_back({name, leader.number, [this, event](World* w, Process* p) { lead(w, p, event); }});
  };
  const auto& nodes = leader.job.nodes;
  const JobSettings settings = settings_of(leader);
  for (size_t n = 0; n < nodes.size(); ++n) {
    const int node = static_cast<int>(n);
    const bool has_ranks = nodes[n].phase == NodePhase::running || nodes[n].phase == NodePhase::ending;
    if (!patient_ && leader.job.phase == JobPhase::stopping && node != leader.node && has_ranks) {
      add("has waited for the end", {.kind = EventKind::stop_overdue});
    }
    const bool is_any_left = std::ranges::any_of(
        world.processes, [&](const Process& p) { return p.node == node && is_unsettled(world, p); });
    if (nodes[n].fenced && !is_any_left) add("sees the end of a fence", {.kind = EventKind::fence_over, .node = node});
    const auto is_there = [&](const Process& p) {
      return p.node == node && (p.up == leader.number || (p.is_alive && !twins_));
    };
    if (nodes[n].phase == NodePhase::absent && world.restarts > 0 && n > 0 && !leader.is_cut_off &&
        std::ranges::none_of(world.processes, is_there) &&
        (leader.job.electorate.attempt >= 0 || !is_any_left)) {  // to start all of them takes longer
      choices->push_back({"has a launcher back", leader.number, [node](World* next, Process* p) {
                            --next->restarts;
                            next->processes.push_back(joining(next, node, p->number));
                          }});
    }
  }
  const bool may_hand_over = leader.job.phase == JobPhase::gathering &&
                             (leader.job.electorate.attempt < 0 || !has_quorum(settings, leader.job));
  const auto replaces = [&](const Process& other) {
    return can_reach(leader, other) && is_leading(other) && other.job.electorate.attempt >= 0 &&
           other.job.nodes[static_cast<size_t>(leader.node)].phase == NodePhase::absent &&
           has_quorum(settings_of(other), other.job);
  };
  if (may_hand_over && std::ranges::any_of(world.processes, replaces)) {
    add("hears that it was replaced", {.kind = EventKind::replaced});
  }
}

void Model::lead(World* world, Process* leader, const JobEvent& event) {
  const int64_t number = leader->number;
  const JobPhase before = leader->job.phase;
  JobEvent full = event;
  full.heir = leader->heir;
  JobStep step = next_step(rules_, settings_of(*leader), std::move(leader->job), full);
  leader->job = std::move(step.state);
  world->has_begun = world->has_begun || leader->job.phase == JobPhase::running;
  if (leader->job.phase == JobPhase::over && before != JobPhase::over) note_end_of_job(world, *leader, step.actions);
  for (const JobAction& action : step.actions) {
    if (action.kind == JobAction::Kind::hand_over) {
      hand_over(world, world->find(number));
      return;
    }
    carry_out(world, world->find(number), action);
  }
}

void Model::note_end_of_job(World* world, const Process& leader, const std::vector<JobAction>& actions) {
  if (std::ranges::any_of(actions, [](const JobAction& a) { return a.kind == JobAction::Kind::hand_over; })) return;
  attempts_.insert(leader.job.policy.attempts);
  if (world->ended != 0) world->ended = leader.job.exit_code;
  if (leader.job.exit_code != 0) return;
  for (const Process& p : world->processes) {  // success: all ranks of the last attempt have finished
    if (p.attempt != std::pair{leader.job.policy.attempts, leader.number}) continue;
    if (std::ranges::any_of(p.ranks, [](Rank rank) { return rank != Rank::done; })) fail("a false success");
  }
}

void Model::carry_out(World* world, Process* leader, const JobAction& action) {
  const auto process = std::ranges::find_if(world->processes, [&](const Process& p) {
    return p.node == action.node && p.up == leader->number && !p.is_vote;
  });
  if (process == world->processes.end()) return;
  Message message{{.attempt = action.attempt, .exit_code = action.exit_code}};
  switch (action.kind) {
    case JobAction::Kind::start:
      message.signal.event = MemberEvent::start;
      message.share = leader->job.assignment.nodes[static_cast<size_t>(action.node)].slots.size();
      message.electorate = leader->job.electorate;
      break;
    case JobAction::Kind::stop:
    case JobAction::Kind::kill: message.signal.event = MemberEvent::stop; break;
    case JobAction::Kind::finish: message.signal.event = MemberEvent::finish; break;
    case JobAction::Kind::agreed:
      message.is_agreed = true;
      message.electorate.attempt = action.attempt;
      break;
    case JobAction::Kind::drop:
      process->up = 0;
      process->to_leader.clear();
      message.signal.event = MemberEvent::leader_lost;
      break;
    case JobAction::Kind::hand_over: return;
  }
  process->to_member.push_back(message);
}

void Model::hand_over(World* world, Process* leader) {
  std::erase_if(world->broken, [&](const Broken& broken) { return broken.leader == leader->number; });
  for (Process& p : world->processes) {
    if (p.up != leader->number) continue;
    p.up = 0;
    p.to_leader.clear();
    p.to_member.push_back({{MemberEvent::leader_lost}});
  }
  leader->leads = false;
  leader->job = {};
}

void Model::tell(World* world, Process* process, const Message& message) {
  const MemberSignal& signal = message.signal;
  const MemberStep step = next_step(rules_, process->member, signal);
  const int attempt = process->member.attempt;
  if (message.is_agreed) {
    if (message.electorate.attempt == process->known.attempt) process->known.before.clear();
    return;
  }
  process->member = step.state;
  const auto say = [&](JobEvent event, std::optional<int> about = {}) {
    event.node = process->node;
    event.attempt = about.value_or(attempt);
    if (process->up != 0) process->to_leader.push_back(event);
  };
  switch (step.order) {
    case MemberOrder::none: break;
    case MemberOrder::start_ranks: {
      if (signal.attempt <= attempt) fail("the number of an attempt is used twice");
      process->ranks.assign(message.share, Rank::running);
      process->attempt = {signal.attempt, message.electorate.now.leader};
      process->known = message.electorate;
      if (!message.electorate.before.empty()) say({.kind = EventKind::agreed}, signal.attempt);
      process->has_ranks = true;
      process->is_noticed = process->is_ending = false;
      break;
    }
    case MemberOrder::stop_ranks:
    case MemberOrder::kill_ranks: process->is_ending = true; break;
    case MemberOrder::tell_failed: say({.kind = EventKind::failed, .end = {.has_failed = true}}); break;
    case MemberOrder::tell_ended: {
      const bool done = std::ranges::all_of(process->ranks, [](Rank rank) { return rank == Rank::done; });
      say({.kind = EventKind::ended, .end = {.succeeded = done, .has_failed = process->is_noticed}});
      break;
    }
    case MemberOrder::find_leader: process->to_member.clear(); break;
    case MemberOrder::lead: take_over(world, process); break;
    case MemberOrder::tell_leaving: say({.kind = EventKind::left, .signal = signal.exit_code - 128}); break;
  }
  if (process->member.phase == MemberPhase::over && process->is_alive) end_process(world, process);
}

void Model::take_over(World* world, Process* process) {
  ++world->elections;
  process->leads = true;
  process->job = first_state(settings_);
  std::vector<int64_t> joined = {process->number};
  for (Process& p : world->processes) {
    if (is_vote_for(p, *process)) joined.push_back(p.number);
  }
  for (const int64_t number : joined) {  // what they have told with their votes
    Process* member = world->find(number);
    join(member, process->number);
    if (number != process->number) tell(world, member, {{MemberEvent::found}});
    const JobEvent event = member->to_leader.front();
    member->to_leader.clear();
    lead(world, process, event);
  }
}

void Model::use_fault(World* world) {
  --world->faults;
  world->has_fault = true;
}

// Ends all connections that |process| has with others.
void Model::disconnect(World* world, Process* process, bool is_dead) {
  release_votes(world, *process);
  for (Process& member : world->processes) {
    const bool is_between = (member.number == process->number) != (member.up == process->number);
    if (member.up == 0 || !is_between) continue;
    const bool has_died = is_dead && member.number == process->number;
    const bool is_known =
        std::ranges::find(member.to_leader, EventKind::joined, &JobEvent::kind) == member.to_leader.end();
    if (is_known && !member.is_vote && !(is_dead && !has_died)) {
      // What was sent before arrives before the loss is seen.
      Broken broken{.leader = member.up, .events = {}};
      if (is_dead) broken.events = member.to_leader;
      broken.events.push_back({.kind = EventKind::lost, .node = member.node});
      world->broken.push_back(broken);
    }
    if (!is_dead) member.to_member.clear();
    if (!member.is_vote && !has_died) {
      member.to_member.push_back({{MemberEvent::leader_lost}});
    }
    member.up = 0;
    member.is_vote = false;
    member.to_leader.clear();
  }
}

void Model::end_process(World* world, Process* process) {
  process->is_alive = false;
  process->to_member.clear();
  disconnect(world, process, true);
  process->up = 0;
  process->to_leader.clear();
  std::erase_if(world->broken, [&](const Broken& broken) { return broken.leader == process->number; });
  // Of the dead only their ranks matter.
  Process rest;
  rest.node = process->node;
  rest.number = process->number;
  rest.is_alive = false;
  rest.attempt = process->attempt;
  rest.ranks = process->ranks;
  *process = rest;
}

Model model_of(const ModelCase& size, const JobRules& rules) {
  JobSettings settings{.slots = std::vector<int>(static_cast<size_t>(size.nodes), size.slots),
                       .worlds = {size.nodes * size.slots},
                       .max_restarts = size.max_restarts};
  if (size.fewer) {
    for (int world = settings.worlds[0] - 1; world > 0; --world) settings.worlds.push_back(world);
  }
  World world;
  world.processes.push_back(Model::leading(&world, settings));
  for (int node = 1; node < size.nodes; ++node) world.processes.push_back(Model::joining(&world, node, 1));
  world.faults = size.faults;
  world.restarts = size.restarts;
  world.leaders = size.leaders;
  return {rules, settings, world, size.patient, size.twins};
}

}  // namespace concord::testing_job
