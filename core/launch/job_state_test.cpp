#include "core/launch/job_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <unordered_map>

#include "core/launch/spare_state.h"

namespace concord {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using EventKind = JobEvent::Kind;

// --- A model of a whole job: the leader, the launchers, their ranks and the messages on their way.

enum class Rank : char { off = '.', running = 'r', done = 'd', failed = 'f', killed = 'k' };

struct Message {  // to a launcher
  MemberSignal signal;
  Electorate electorate = {};  // of start
  size_t share = 0;            // of start: ranks
  bool is_agreed = false;      // no signal: the voters of its attempt alone decide
};

struct Process {  // a launcher
  int node = 0;
  int64_t number = 0;
  bool is_alive = true;
  bool is_cut_off = false;  // from all others
  bool may_heal = false;    // which ends some day
  MemberState member;
  std::vector<Rank> ranks;
  std::pair<int, int64_t> attempt = {-1, 0};  // of the ranks, and who has begun it
  bool has_ranks = false;                     // started, and the member does not know yet that all have ended
  bool is_noticed = false;                    // that one has failed
  bool is_ending = false;                     // the launcher kills them
  Electorate known;
  int64_t heir = 0;  // whose address it has
  bool leads = false;
  JobState job;          // of a leader
  int64_t up = 0;        // whom it has joined; 0: nobody
  bool is_vote = false;  // who does not lead yet
  std::vector<JobEvent> to_leader;
  std::vector<Message> to_member;

  bool any_running() const { return std::ranges::find(ranks, Rank::running) != ranks.end(); }
};

struct Broken {  // a connection that has ended: what its leader still has to hear
  int64_t leader = 0;
  std::vector<JobEvent> events;
};

struct World {
  std::vector<Process> processes;
  std::vector<Broken> broken;
  int64_t numbers = 0;     // of launchers that were given out
  int faults = 0;          // that may still come
  int restarts = 0;        // of launchers that may still come
  int leaders = 0;         // leaders that may still be started again
  int returned = 0;        // and have been
  int elections = 0;       // that there were
  int ended = -1;          // the exit code with which a leader has ended the job
  bool is_asked = false;   // a launcher was told to stop
  bool has_fault = false;  // anything else has happened
  bool has_begun = false;  // an attempt

  Process* find(int64_t number) {
    const auto found = std::ranges::find(processes, number, &Process::number);
    return found == processes.end() ? nullptr : &*found;
  }
  const Process* find(int64_t number) const { return const_cast<World*>(this)->find(number); }
};

// All of it that matters for what follows, one byte for each number.
class Key {
 public:
  explicit Key(const World& world) {
    text_.reserve(256);
    add(world.faults, world.restarts, world.leaders, world.returned, world.elections, world.ended, world.is_asked,
        world.has_fault, world.has_begun, world.processes.size());
    for (const Process& process : world.processes) add_process(process);
    for (const Broken& broken : world.broken) {
      add(broken.leader, broken.events.size());
      for (const JobEvent& event : broken.events) add_event(event);
    }
  }
  const std::string& text() const { return text_; }

 private:
  template <class... Numbers>
  void add(Numbers... numbers) {
    (text_.push_back(static_cast<char>(numbers)), ...);
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
  std::string text_;
};

class Model {
 public:
  // |patient|: the times that leaders and launchers wait are longer than all that does not hang; and ranks, which wait
  // for each other, finish only together.
  Model(JobRules rules, JobSettings settings, World first, bool patient, bool twins)
      : rules_(std::move(rules)),
        settings_(std::move(settings)),
        first_(std::move(first)),
        patient_(patient),
        twins_(twins) {}

  // Walks through everything that can happen. What is wrong, with how it came to it; empty: nothing.
  std::string check() {
    visit(first_);
    return problem_;
  }
  size_t states() const { return seen_.size(); }
  const std::set<int>& exit_codes() const { return exit_codes_; }                // of the job; -1: all have given up
  const std::set<int>& codes_of_returned() const { return codes_of_returned_; }  // where a leader was started again
  const std::set<int>& codes_of_elected() const { return codes_of_elected_; }    // where one was elected
  const std::set<int>& attempts() const { return attempts_; }                    // that runs have needed
  const std::set<int>& worlds() const { return worlds_; }                        // that attempts have had

  static Process joining(World* world, int node, int64_t leader) {
    Process process;
    process.node = node;
    process.number = ++world->numbers;
    process.up = leader == 0 ? process.number : leader;
    process.to_leader.push_back({.kind = EventKind::joined, .node = node, .launcher = process.number});
    return process;
  }
  static Process leading(World* world, const JobSettings& settings) {
    Process process = joining(world, 0, 0);
    process.leads = true;
    process.job = first_state(settings);
    return process;
  }

 private:
  struct Choice {
    const char* name;
    int64_t process;  // to which it happens
    std::function<void(World*, Process*)> apply;
  };

  void visit(const World& world) {
    if (!problem_.empty()) return;
    const std::string own = Key(world).text();
    const auto [entry, is_new] = seen_.try_emplace(own, true);
    if (!is_new) {
      if (entry->second) fail("it goes round in a circle");  // on the way that led here
      return;
    }
    check_state(world);
    const std::vector<Choice> choices = choices_of(world);
    if (choices.empty()) check_end(world);
    for (const Choice& choice : choices) {
      World next = world;
      trail_.push_back(&choice);
      choice.apply(&next, next.find(choice.process));
      visit(next);
      trail_.pop_back();
      if (!problem_.empty()) return;
    }
    seen_[own] = false;
  }

  void fail(const std::string& what) {
    if (!problem_.empty()) return;
    problem_ = what + " after:";
    for (const Choice* choice : trail_) {
      problem_ += std::string(" ") + choice->name + " " + std::to_string(choice->process) + ";";
    }
  }

  void check_state(const World& world) {
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

  void check_end(const World& world) {
    for (const Process& process : world.processes) {
      if (process.any_running()) fail("ranks are left over");
      if (process.is_alive) fail("a launcher waits for ever");
    }
    exit_codes_.insert(world.ended);
    if (world.returned > 0) codes_of_returned_.insert(world.ended);
    if (world.elections > 0) codes_of_elected_.insert(world.ended);
    // 1: ranks that ran already were killed before they had saved.
    const bool is_only_asked =
        patient_ && world.ended >= 0 && world.is_asked && !world.has_fault && world.elections == 0;
    if (is_only_asked && !std::set{0, 1, 128 + 15}.contains(world.ended)) {
      fail("it was asked to stop, and does something else");
    }
  }

  // --- what can happen next

  std::vector<Choice> choices_of(const World& world) {
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
                           if (w->broken[i].events.empty())
                             w->broken.erase(w->broken.begin() + static_cast<int64_t>(i));
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

  static bool is_leading(const Process& process) {
    return process.is_alive && process.leads && process.job.phase != JobPhase::over;
  }
  static bool can_reach(const Process& one, const Process& other) {
    return one.number != other.number && one.is_alive && other.is_alive && !one.is_cut_off && !other.is_cut_off;
  }

  // It has still to see, or to do, what takes a moment only: the times of fences are chosen so that it has by then.
  static bool is_unsettled(const World& world, const Process& process) {
    if (!process.is_alive) return process.any_running();
    const auto is_own = [&](const Broken& broken) { return broken.leader == process.number; };
    return !process.to_member.empty() || (process.is_ending && process.any_running()) ||
           (process.leads && std::ranges::any_of(world.broken, is_own));
  }

  // What the dead one has left is gone by then: the kernel kills its ranks before anybody can start a launcher.
  void add_leader_return(const World& world, std::vector<Choice>* choices) const {
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

  bool can_finish(const World& world, const Process& one) const {
    return !patient_ || std::ranges::none_of(world.processes, [&](const Process& process) {
      return process.attempt == one.attempt && (std::ranges::find(process.ranks, Rank::failed) != process.ranks.end() ||
                                                std::ranges::find(process.ranks, Rank::killed) != process.ranks.end());
    });
  }

  void add_rank_choices(const World& world, const Process& process, std::vector<Choice>* choices) {
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

  void add_process_choices(const World& world, const Process& process, std::vector<Choice>* choices) {
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

  void add_search(const World& world, const Process& process, std::vector<Choice>* choices) {
    if (process.up != 0) return;
    for (const Process& other : world.processes) {
      if (!can_reach(process, other)) continue;
      const int64_t number = other.number;
      // A leader that has not noticed the loss yet refuses it.
      const bool accepts = is_leading(other) &&
                           other.job.nodes[static_cast<size_t>(process.node)].phase == NodePhase::absent &&
                           std::ranges::none_of(world.processes, [&](const Process& p) {
                             return p.up == number && !p.is_vote && p.node == process.node;
                           });
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

  static bool is_vote_for(const Process& voter, const Process& process) {
    return voter.is_vote && voter.up == process.number;
  }

  static bool is_elected(const World& world, const Process& process) {
    Electorate newest = process.known;
    std::vector<int64_t> present = {process.number};
    for (const Process& p : world.processes) {
      if (!is_vote_for(p, process)) continue;
      if (p.known.attempt > newest.attempt) newest = p.known;
      present.push_back(p.number);
    }
    return newest.now.contains(process.number) && has_quorum(newest, present);
  }

  static void join(Process* process, int64_t leader) {
    process->up = leader;
    process->is_vote = false;
    process->to_member.clear();
    process->to_leader = {
        {.kind = EventKind::joined, .node = process->node, .launcher = process->number, .electorate = process->known}};
  }

  static void release_votes(World* world, const Process& process) {
    for (Process& p : world->processes) {
      if (!is_vote_for(p, process)) continue;
      p.up = 0;
      p.is_vote = false;
    }
  }

  JobSettings settings_of(const Process& leader) const {
    JobSettings settings = settings_;
    settings.leader = leader.node;
    return settings;
  }

  void add_leader_choices(const World& world, const Process& leader, std::vector<Choice>* choices) {
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
      if (nodes[n].fenced && !is_any_left)
        add("sees the end of a fence", {.kind = EventKind::fence_over, .node = node});
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

  // --- what it does

  void lead(World* world, Process* leader, const JobEvent& event) {
    const int64_t number = leader->number;
    const JobPhase before = leader->job.phase;
    JobEvent full = event;
    full.heir = leader->heir;
    JobStep step = next_step(rules_, settings_of(*leader), leader->job, full);
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

  void note_end_of_job(World* world, const Process& leader, const std::vector<JobAction>& actions) {
    if (std::ranges::any_of(actions, [](const JobAction& a) { return a.kind == JobAction::Kind::hand_over; })) return;
    attempts_.insert(leader.job.policy.attempts);
    if (world->ended != 0) world->ended = leader.job.exit_code;
    if (leader.job.exit_code != 0) return;
    for (const Process& p : world->processes) {  // success: all ranks of the last attempt have finished
      if (p.attempt != std::pair{leader.job.policy.attempts, leader.number}) continue;
      if (std::ranges::any_of(p.ranks, [](Rank rank) { return rank != Rank::done; })) fail("a false success");
    }
  }

  void carry_out(World* world, Process* leader, const JobAction& action) {
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

  static void hand_over(World* world, Process* leader) {
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

  void tell(World* world, Process* process, const Message& message) {
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

  void take_over(World* world, Process* process) {
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

  static void use_fault(World* world) {
    --world->faults;
    world->has_fault = true;
  }

  static void kill_ranks(Process* process) { std::ranges::replace(process->ranks, Rank::running, Rank::killed); }

  // Ends all connections that |process| has with others.
  static void disconnect(World* world, Process* process, bool is_dead) {
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

  static void end_process(World* world, Process* process) {
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

  const JobRules rules_;
  const JobSettings settings_;
  const World first_;
  const bool patient_;
  const bool twins_;
  std::unordered_map<std::string, bool> seen_;  // true: on the way to where we are
  std::vector<const Choice*> trail_;
  std::string problem_;
  std::set<int> exit_codes_, codes_of_returned_, codes_of_elected_, attempts_, worlds_;
};

struct ModelCase {
  int nodes = 2, slots = 2, faults = 2, restarts = 1, max_restarts = 1, leaders = 0;
  bool fewer = false;
  bool patient = false;
  bool twins = false;  // a launcher may be started again while the one before it lives
};

Model model_of(const ModelCase& size, const JobRules& rules = job_rules()) {
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

TEST(JobState, EveryOrderOfEventsOfTwoMachinesWithTwoFaults) {
  Model model = model_of({.slots = 1});
  EXPECT_EQ(model.check(), "");
  EXPECT_GT(model.states(), 20'000u);
  EXPECT_THAT(model.exit_codes(), ElementsAre(-1, 0, 1, 75, 143));
  EXPECT_THAT(model.attempts(), ElementsAre(0, 1, 2));
  EXPECT_THAT(model.worlds(), ElementsAre(2));
  EXPECT_EQ(model_of({.slots = 2, .faults = 1}).check(), "");
}

// The others elect another leader. Nothing is trained twice, whoever is cut off, and for how long.
TEST(JobState, EveryOrderOfEventsOfThreeMachinesWithOneFault) {
  Model model = model_of({.nodes = 3, .slots = 1, .faults = 1, .restarts = 0, .fewer = true, .patient = true});
  EXPECT_EQ(model.check(), "");
  EXPECT_TRUE(model.codes_of_elected().contains(0));
}

TEST(JobState, EveryOrderOfEventsWithFewerRanks) {
  Model model = model_of({.slots = 1, .fewer = true});
  EXPECT_EQ(model.check(), "");
  EXPECT_THAT(model.worlds(), ElementsAre(1, 2));
  EXPECT_EQ(model_of({.slots = 1, .faults = 1, .fewer = true, .twins = true}).check(), "");
}

TEST(JobState, EveryOrderOfEventsWithALeaderThatIsStartedAgain) {
  for (const bool fewer : {false, true}) {
    Model model = model_of({.slots = 1, .faults = 1, .restarts = 0, .leaders = 1, .fewer = fewer});
    EXPECT_EQ(model.check(), "");
    EXPECT_TRUE(model.codes_of_returned().contains(0));
  }
  // One of the launchers may still have ranks when the leader that is back begins; and others may have elected one.
  Model model = model_of({.nodes = 3, .slots = 1, .faults = 1, .restarts = 0, .leaders = 1, .patient = true});
  EXPECT_EQ(model.check(), "");
  EXPECT_TRUE(model.codes_of_elected().contains(0));
}

// Without one of its rows the job hangs, runs twice at once or leaves something: the model finds it; no row is idle.
TEST(JobState, NoRowCanBeLeftOut) {
  const JobRules& all = job_rules();
  const auto found = [](const JobRules& broken) {
    std::string problem;
    for (const ModelCase& size :
         {ModelCase{.slots = 1, .faults = 1, .restarts = 0, .patient = true}, ModelCase{.slots = 1, .patient = true},
          ModelCase{.slots = 1, .faults = 1},
          ModelCase{.slots = 1, .faults = 1, .restarts = 0, .leaders = 1, .patient = true},
          ModelCase{.nodes = 3, .slots = 1, .faults = 1, .restarts = 0, .fewer = true, .patient = true}}) {
      Model model = model_of(size, broken);
      problem += model.check();
      if (!model.exit_codes().contains(0)) problem += "no run succeeds";
      if (size.nodes > 2 && !model.codes_of_elected().contains(0)) problem += "no elected leader succeeds";
      if (size.leaders > 0 && !model.codes_of_returned().contains(0)) problem += "no leader succeeds that has returned";
      if (!problem.empty()) break;
    }
    return problem;
  };
  EXPECT_EQ(found(all), "");
  for (size_t i = 0; i < all.node.size(); ++i) {
    JobRules broken = all;
    broken.node.erase(broken.node.begin() + static_cast<int64_t>(i));
    EXPECT_NE(found(broken), "") << to_string(all.node[i].phase) << " " << to_string(all.node[i].event);
  }
  for (size_t i = 0; i < all.job.size(); ++i) {
    JobRules broken = all;
    broken.job.erase(broken.job.begin() + static_cast<int64_t>(i));
    EXPECT_NE(found(broken), "") << to_string(all.job[i].phase) << " " << to_string(all.job[i].when);
  }
  for (size_t i = 0; i < all.member.size(); ++i) {
    JobRules broken = all;
    broken.member.erase(broken.member.begin() + static_cast<int64_t>(i));
    EXPECT_NE(found(broken), "") << to_string(all.member[i].phase) << " " << to_string(all.member[i].event);
  }
}

TEST(JobState, FindsAnAttemptThatStartsTooEarly) {
  JobRules broken = job_rules();
  for (NodeRow& row : broken.node) row.fence = false;
  EXPECT_THAT(model_of({.slots = 1, .faults = 1, .twins = true}, broken).check(),
              HasSubstr("two attempts run at once"));
  broken = job_rules();
  for (NodeRow& row : broken.node) {
    if (row.event == NodeEvent::failed) row.next = NodePhase::ready;  // does not wait for its end
  }
  EXPECT_NE(model_of({.slots = 2}, broken).check(), "");
}

// --- who may go on

TEST(Quorum, IsMoreThanHalfOrHalfWithTheLeader) {
  const Electorate three{.attempt = 0, .now = {.leader = 1, .launchers = {1, 2, 3}}};
  EXPECT_TRUE(has_quorum(three, {2, 3}));
  EXPECT_FALSE(has_quorum(three, {1}));
  EXPECT_FALSE(has_quorum(three, {2, 4, 5}));  // strangers have no vote
  const Electorate two{.attempt = 0, .now = {.leader = 1, .launchers = {1, 2}}};
  EXPECT_TRUE(has_quorum(two, {1}));
  EXPECT_FALSE(has_quorum(two, {2}));
}

TEST(Quorum, IsOneOfTheVotersBeforeAsWell) {
  const Electorate changed{
      .attempt = 1, .now = {.leader = 1, .launchers = {1, 4}}, .before = {{.leader = 1, .launchers = {1, 2, 3}}}};
  EXPECT_FALSE(has_quorum(changed, {1, 4}));
  EXPECT_FALSE(has_quorum(changed, {2, 3}));
  EXPECT_TRUE(has_quorum(changed, {1, 2}));
}

// Who has the address of a launcher stands for it where all others are there.
TEST(Quorum, OfALeaderThatIsStartedAgain) {
  const Electorate two{.attempt = 0, .now = {.leader = 1, .launchers = {1, 2}}};
  EXPECT_TRUE(has_quorum(two, {2, 9}, 1));
  const Electorate three{.attempt = 0, .now = {.leader = 1, .launchers = {1, 2, 3}}};
  EXPECT_FALSE(has_quorum(three, {2, 9}, 1));
}

TEST(Quorum, OfTheFirstAttemptIsMoreThanHalfOfAllMachines) {
  const JobSettings settings{.slots = {1, 1}, .worlds = {2, 1}, .max_restarts = 1};
  JobState state =
      next_step(job_rules(), settings, first_state(settings), {.kind = EventKind::joined, .node = 0, .launcher = 1})
          .state;
  state = next_step(job_rules(), settings, std::move(state), {.kind = EventKind::waited}).state;
  EXPECT_EQ(state.phase, JobPhase::over);
  EXPECT_EQ(state.exit_code, 1);
}

TEST(Quorum, VotersOfAnAttemptAreAgreedOn) {
  const JobSettings settings{.slots = {1, 1, 1}, .worlds = {3, 2}, .max_restarts = 1};
  JobState state = first_state(settings);
  std::vector<JobAction> actions;
  const auto step = [&](const JobEvent& event) {
    JobStep next = next_step(job_rules(), settings, std::move(state), event);
    state = std::move(next.state);
    actions = std::move(next.actions);
  };
  for (const int node : {0, 1, 2}) step({.kind = EventKind::joined, .node = node, .launcher = node + 1});
  EXPECT_EQ(state.electorate, (Electorate{.attempt = 0, .now = {.leader = 1, .launchers = {1, 2, 3}}}));
  step({.kind = EventKind::lost, .node = 2});
  for (const int node : {0, 1}) step({.kind = EventKind::ended, .node = node});
  step({.kind = EventKind::waited});
  step({.kind = EventKind::fence_over, .node = 2});
  EXPECT_EQ(state.electorate.now.launchers, (std::vector<int64_t>{1, 2}));
  EXPECT_THAT(state.electorate.before, ElementsAre(Voters{.leader = 1, .launchers = {1, 2, 3}}));
  step({.kind = EventKind::agreed, .node = 0, .attempt = 1});
  step({.kind = EventKind::agreed, .node = 1, .attempt = 0});  // of another one
  EXPECT_EQ(state.electorate.before.size(), 1u);
  step({.kind = EventKind::agreed, .node = 1, .attempt = 1});
  EXPECT_TRUE(state.electorate.before.empty());
  EXPECT_EQ(actions.size(), 2u);
}

// --- ranks that cannot be brought back

class FewerRanksOfAJob : public ::testing::Test {
 protected:
  FewerRanksOfAJob() {
    for (const int node : {0, 1}) step({.kind = EventKind::joined, .node = node});
  }
  void step(JobEvent event) {
    if (event.kind == EventKind::failed || event.kind == EventKind::ended) event.attempt = state_.policy.attempts;
    JobStep step = next_step(job_rules(), settings_, std::move(state_), event);
    state_ = std::move(step.state);
  }
  // A rank fails; all end.
  void fail(int node, int slot, int exit_code) {
    const NodeEnd end{.has_failed = true, .failed_slot = slot, .exit_code = exit_code};
    step({.kind = EventKind::failed, .node = node, .end = end});
    step({.kind = EventKind::ended, .node = node, .end = end});
    step({.kind = EventKind::ended, .node = 1 - node});
  }
  const std::vector<NodeShare>& shares() const { return state_.assignment.nodes; }

  const JobSettings settings_{.slots = {2, 2}, .worlds = {4, 2, 1}, .max_restarts = 3};
  JobState state_ = first_state(settings_);
};

TEST_F(FewerRanksOfAJob, ADeviceThatIsAtFaultIsLeftOut) {
  EXPECT_THAT(shares(), ElementsAre(NodeShare{0, {0, 1}}, NodeShare{2, {0, 1}}));
  fail(0, 0, kExitBadDevice);
  EXPECT_EQ(state_.phase, JobPhase::running);
  EXPECT_THAT(shares(), ElementsAre(NodeShare{0, {1}}, NodeShare{1, {0}}));
  fail(1, 0, kExitBadDevice);
  EXPECT_THAT(shares(), ElementsAre(NodeShare{0, {1}}, NodeShare{1, {1}}));
  fail(0, 1, kExitBadDevice);  // machine 0 has none left, and serves the store
  EXPECT_EQ(state_.phase, JobPhase::over);
  EXPECT_EQ(state_.exit_code, kExitBadDevice);
}

TEST_F(FewerRanksOfAJob, AnyOtherFailureIsNoReasonToLeaveARankOut) {
  fail(0, 0, 1);
  EXPECT_EQ(state_.assignment.world, 4);
}

TEST_F(FewerRanksOfAJob, GrowsAtTheNextRestartAfterAMachineHasComeBack) {
  step({.kind = EventKind::lost, .node = 1});
  step({.kind = EventKind::ended, .node = 0});
  EXPECT_EQ(state_.phase, JobPhase::gathering);
  step({.kind = EventKind::waited});
  EXPECT_EQ(state_.phase, JobPhase::gathering);  // until nothing of it can be left
  step({.kind = EventKind::fence_over, .node = 1});
  EXPECT_EQ(state_.assignment.world, 2);
  step({.kind = EventKind::joined, .node = 1});
  EXPECT_EQ(state_.assignment.world, 2);
  EXPECT_EQ(state_.phase, JobPhase::running);
  const NodeEnd end{.has_failed = true, .failed_slot = 0};
  step({.kind = EventKind::ended, .node = 0, .end = end});
  EXPECT_EQ(state_.phase, JobPhase::running);
  EXPECT_EQ(state_.assignment.world, 4);
}

TEST_F(FewerRanksOfAJob, RanksThatBelongTogetherStayOnOneMachine) {
  const JobSettings settings{.slots = {4, 4}, .worlds = {8, 6, 4, 2}, .together = 2};
  std::vector<NodeView> nodes(2);
  for (NodeView& node : nodes) node.phase = NodePhase::ready;
  nodes[0].bad_slots = {2};
  const Assignment assignment = assign_ranks(settings, nodes).value();
  EXPECT_EQ(assignment.world, 6);
  EXPECT_THAT(assignment.nodes, ElementsAre(NodeShare{0, {0, 1}}, NodeShare{2, {0, 1, 2, 3}}));
}

// --- A launcher with spares: every order in which they load, die and are taken, and in which attempts begin and end.

struct SpareWorld {
  std::vector<SparePhase> spares;
  int processes = 0;  // of ranks
  bool is_training = false;
  int deaths = 0;  // of spares and attempts that may still come
  auto operator<=>(const SpareWorld&) const = default;
};

class SpareModel {
 public:
  SpareModel(JobRules rules, int nproc, int spares) : rules_(std::move(rules)), nproc_(nproc) {
    visit({.spares = std::vector<SparePhase>(static_cast<size_t>(spares), SparePhase::absent), .deaths = 4});
  }
  std::set<std::string> problems() const { return problems_; }
  size_t states() const { return seen_.size(); }
  // Of an attempt, and of spares that were ready.
  int most_taken() const { return most_taken_; }
  int most_ready() const { return most_ready_; }
  bool starts_again() const { return starts_again_; }  // a spare that has died is started once more

 private:
  SpareOrder apply(SpareWorld* world, size_t place, SpareEvent event) const {
    const SpareStep step = next_step(rules_, world->spares[place], event);
    world->spares[place] = step.phase;
    return step.order;
  }

  void visit(const SpareWorld& world) {
    if (!seen_.insert(world).second) return;
    const auto is_process = [](SparePhase phase) { return phase == SparePhase::loading || phase == SparePhase::ready; };
    const auto loading = std::ranges::count(world.spares, SparePhase::loading);
    const auto waiting = std::ranges::count_if(world.spares, is_process);
    if (loading > 1) problems_.insert("several load at once");
    if (world.processes + waiting > nproc_ + static_cast<int>(world.spares.size())) problems_.insert("too many");
    most_ready_ = std::max(most_ready_, static_cast<int>(std::ranges::count(world.spares, SparePhase::ready)));
    if (world.processes == 0) begin_attempt(world);
    if (world.processes > 0) during_attempt(world);
    for (size_t i = 0; i < world.spares.size(); ++i) {
      if (world.spares[i] == SparePhase::loading) happen(world, i, SpareEvent::loaded);
      if (is_process(world.spares[i]) && world.deaths > 0) happen(world, i, SpareEvent::died);
    }
  }

  void happen(SpareWorld world, size_t place, SpareEvent event) {
    const SparePhase before = world.spares[place];
    world.deaths -= event == SpareEvent::died;
    if (apply(&world, place, event) != SpareOrder::none) problems_.insert("an order for what a process did");
    if (world.spares[place] == before) problems_.insert("what a process did is not noticed");
    visit(world);
  }

  void begin_attempt(SpareWorld world) {
    const bool had_broken = std::ranges::count(world.spares, SparePhase::broken) > 0;
    for (size_t i = 0; i < world.spares.size(); ++i) apply(&world, i, SpareEvent::renewed);
    if (std::ranges::count(world.spares, SparePhase::broken) > 0) problems_.insert("one stays broken");
    starts_again_ = starts_again_ || had_broken;
    int taken = 0;
    for (; world.processes < nproc_; ++world.processes) {
      const std::optional<size_t> place = spare_to_take(world.spares);
      if (!place) continue;  // a new process
      if (!spare_exists(world, *place)) problems_.insert("one that is not there becomes a rank");
      if (apply(&world, *place, SpareEvent::taken) != SpareOrder::hand_over) problems_.insert("it is not handed over");
      if (spare_exists(world, *place)) problems_.insert("a process is a rank and a spare");
      if (++taken > nproc_) return;
    }
    most_taken_ = std::max(most_taken_, taken);
    world.is_training = false;
    visit(world);
  }

  void during_attempt(SpareWorld world) {
    if (!world.is_training) {
      SpareWorld next = world;
      next.is_training = true;
      visit(next);
    } else if (const std::optional<size_t> place = spare_to_start(world.spares)) {
      SpareWorld next = world;
      if (apply(&next, *place, SpareEvent::wanted) != SpareOrder::start) problems_.insert("it is not started");
      visit(next);
    }
    if (world.deaths == 0) return;
    --world.deaths;
    world.processes = 0;  // a rank has failed, and the others were killed
    visit(world);
  }

  static bool spare_exists(const SpareWorld& world, size_t place) {
    return world.spares[place] == SparePhase::loading || world.spares[place] == SparePhase::ready;
  }

  JobRules rules_;
  int nproc_;
  std::set<SpareWorld> seen_;
  std::set<std::string> problems_;
  int most_taken_ = 0, most_ready_ = 0;
  bool starts_again_ = false;
};

std::string problems_of_spares(const JobRules& rules) {
  std::string text;
  for (const auto& [nproc, spares] : std::vector<std::pair<int, int>>{{2, 1}, {2, 2}, {1, 3}}) {
    const SpareModel model(rules, nproc, spares);
    for (const std::string& problem : model.problems()) text += problem + "; ";
    if (model.most_taken() != std::min(nproc, spares)) text += "not all spares become ranks; ";
    if (model.most_ready() != spares) text += "not all spares are ready some day; ";
    if (!model.starts_again()) text += "a spare that has died is never started again; ";
  }
  return text;
}

TEST(JobState, EveryOrderOfEventsOfSpares) {
  EXPECT_EQ(problems_of_spares(job_rules()), "");
  EXPECT_GT(SpareModel(job_rules(), 2, 2).states(), 50U);
}

TEST(JobState, NoRowOfSparesCanBeLeftOut) {
  const JobRules& all = job_rules();
  for (size_t i = 0; i < all.spare.size(); ++i) {
    JobRules broken = all;
    broken.spare.erase(broken.spare.begin() + static_cast<int64_t>(i));
    EXPECT_NE(problems_of_spares(broken), "") << to_string(all.spare[i].phase) << " " << to_string(all.spare[i].event);
  }
}

TEST(JobState, RulesArePrintedAndDrawn) {
  EXPECT_THAT(rules_table(job_rules()), HasSubstr("  running    trouble       stopping   stop\n"));
  EXPECT_THAT(rules_mermaid(job_rules()), HasSubstr("    job_running --> job_stopping: trouble / stop\n"));
  EXPECT_THAT(rules_mermaid(job_rules()), HasSubstr("    machine_running --> machine_absent: lost / fence\n"));
  EXPECT_THAT(rules_mermaid(job_rules()), HasSubstr("    spare_ready --> spare_absent: taken / hand_over\n"));
}

}  // namespace
}  // namespace concord
