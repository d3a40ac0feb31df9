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

struct Process {  // a launcher
  int node = 0;
  bool is_alive = true;
  bool is_connected = true;  // to the leader
  MemberState member;
  std::vector<Rank> ranks;
  int leader = 0;           // which one it has joined: the first, or one that was started again
  int attempt = -1;         // of the ranks, with the leader that has begun it
  bool has_ranks = false;   // started, and the member does not know yet that all have ended
  bool is_noticed = false;  // that one has failed
  bool is_ending = false;   // the launcher kills them
  size_t share = 0;         // ranks of the attempt that it was last told to start
  std::vector<JobEvent> to_leader;
  std::vector<MemberSignal> to_member;

  bool any_running() const { return std::ranges::find(ranks, Rank::running) != ranks.end(); }
};

struct World {
  JobState leader;
  std::vector<Process> processes;
  int faults = 0;          // that may still come
  int restarts = 0;        // of launchers that may still come
  int leaders = 0;         // leaders that may still be started again
  int returned = 0;        // and have been
  bool is_asked = false;   // a launcher was told to stop
  bool has_fault = false;  // anything else has happened

  bool leader_is_up() const {
    return std::ranges::any_of(processes, [](const Process& p) { return p.node == 0 && p.is_alive; });
  }
};

// All of it that matters for what follows, one byte for each number.
std::string key(const World& world) {
  std::string text;
  text.reserve(128);
  const auto add = [&](auto... numbers) { (text.push_back(static_cast<char>(numbers)), ...); };
  const JobState& leader = world.leader;
  add(leader.phase, leader.policy.attempts, leader.policy.failures, leader.has_trouble, leader.bad_node,
      leader.bad_slot, leader.has_lost_node, leader.asked_signal, leader.exit_code, leader.end.stop_signal,
      leader.end.stopped_as_asked, leader.end.can_start_again, leader.end.exit_code, leader.assignment.world,
      world.faults, world.restarts, world.leaders, world.returned, world.is_asked, world.has_fault);
  for (const NodeView& node : leader.nodes) {
    add(node.phase, node.fenced, node.missed, node.bad_slots.size());
    for (const int slot : node.bad_slots) add(slot);
  }
  for (const Process& process : world.processes) {
    add(process.node, process.leader, process.is_alive, process.is_connected, process.member.phase,
        process.member.attempt, process.member.exit_code, process.attempt, process.has_ranks, process.is_noticed,
        process.is_ending, process.share, process.ranks.size(), process.to_leader.size(), process.to_member.size());
    for (const Rank rank : process.ranks) add(rank);
    for (const JobEvent& event : process.to_leader) {
      add(event.kind, event.attempt, event.signal, event.last_attempt, event.end.succeeded, event.end.has_failed);
    }
    for (const MemberSignal& signal : process.to_member) add(signal.event, signal.attempt, signal.exit_code);
  }
  return text;
}

class Model {
 public:
  // |patient|: the times that the leader waits are longer than all that does not hang; and ranks, which wait for each
  // other, finish only together.
  Model(JobRules rules, JobSettings settings, World first, bool patient)
      : rules_(std::move(rules)), settings_(std::move(settings)), first_(std::move(first)), patient_(patient) {}

  // Walks through everything that can happen. What is wrong, with how it came to it; empty: nothing.
  std::string check() {
    visit(first_);
    return problem_;
  }
  size_t states() const { return seen_.size(); }
  const std::set<int>& exit_codes() const { return exit_codes_; }                // of the leader; -1: lost
  const std::set<int>& codes_of_returned() const { return codes_of_returned_; }  // of leaders that were started again
  const std::set<int>& attempts() const { return attempts_; }                    // that runs have needed
  const std::set<int>& worlds() const { return worlds_; }                        // that attempts have had

 private:
  static constexpr size_t kLeader = 1000;
  struct Choice {
    const char* name;
    size_t process;  // to which it happens; past the end: to the leader
    std::function<void(World*, Process*)> apply;
  };

  void visit(const World& world) {
    if (!problem_.empty()) return;
    const std::string own = key(world);
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
      choice.apply(&next, choice.process < next.processes.size() ? &next.processes[choice.process] : nullptr);
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
      problem_ += std::string(" ") + choice->name;
      problem_ += choice->process == kLeader ? std::string(";") : " " + std::to_string(choice->process) + ";";
    }
  }

  void check_state(const World& world) {
    std::set<int> running;
    for (const Process& process : world.processes) {
      if (process.any_running()) running.insert(process.attempt);
    }
    if (running.size() > 1) fail("two attempts run at once");
    if (world.leader.policy.attempts > 1 + settings_.max_restarts + world.returned) fail("more restarts than allowed");
    if (world.leader.phase == JobPhase::running) worlds_.insert(world.leader.assignment.world);
  }

  void check_end(const World& world) {
    for (const Process& process : world.processes) {
      if (process.any_running()) fail("ranks are left over");
      if (process.is_alive) fail("a launcher waits for ever");
    }
    const bool is_over = world.leader.phase == JobPhase::over;
    exit_codes_.insert(is_over ? world.leader.exit_code : -1);
    if (world.returned > 0) codes_of_returned_.insert(is_over ? world.leader.exit_code : -1);
    attempts_.insert(world.leader.policy.attempts);
    // 1: ranks that ran already were killed before they had saved.
    const bool is_only_asked = patient_ && is_over && world.is_asked && !world.has_fault;
    if (is_only_asked && !std::set{0, 1, 128 + 15}.contains(world.leader.exit_code)) {
      fail("it was asked to stop, and does something else");
    }
    if (!is_over || world.leader.exit_code != 0) return;
    for (const Process& process : world.processes) {  // success: all ranks of the last attempt have finished
      if (process.attempt != numbered(world.leader.policy.attempts, world.returned)) continue;
      if (std::ranges::any_of(process.ranks, [](Rank rank) { return rank != Rank::done; })) fail("a false success");
    }
  }

  // --- what can happen next

  std::vector<Choice> choices_of(const World& world) {
    std::vector<Choice> choices;
    for (size_t i = 0; i < world.processes.size(); ++i) add_process_choices(world, i, &choices);
    if (world.leader_is_up() && world.leader.phase != JobPhase::over) add_leader_choices(world, &choices);
    add_leader_return(world, &choices);
    bool may_wait = !patient_ || choices.empty();
    // It waits for longer than launchers need to notice that the one before it is lost.
    const auto runs = [&](const Process& p) {
      return p.any_running() || (p.is_alive && p.leader != world.returned && (p.has_ranks || !p.to_member.empty()));
    };
    if (world.returned > 0 && world.leader.policy.attempts == 0)
      may_wait &= std::ranges::none_of(world.processes, runs);
    for (size_t i = 0; may_wait && i < world.processes.size(); ++i) {
      if (!world.processes[i].is_alive || world.processes[i].member.phase != MemberPhase::searching) continue;
      choices.push_back({"gives up", i, [this](World* w, Process* p) { tell(w, p, {.event = MemberEvent::gave_up}); }});
    }
    if (patient_) may_wait &= choices.empty();
    if (may_wait && world.leader_is_up() && is_waiting_for_nodes(world.leader)) {
      choices.push_back(
          {"leader has waited", kLeader, [this](World* next, Process*) { lead(next, {.kind = EventKind::waited}); }});
    }
    return choices;
  }

  // What the dead one has left is gone by then: the kernel kills its ranks before anybody can start a launcher.
  void add_leader_return(const World& world, std::vector<Choice>* choices) const {
    const auto is_left = [](const Process& p) { return p.node == 0 && (p.is_alive || p.any_running()); };
    if (world.leaders == 0 || std::ranges::any_of(world.processes, is_left)) return;
    choices->push_back({"leader comes back", kLeader, [this](World* next, Process*) {
                          --next->leaders;
                          ++next->returned;
                          std::erase_if(next->processes, [](const Process& p) { return p.node == 0; });
                          next->leader = first_state(settings_);
                          next->processes.push_back(joining(0));
                          next->processes.back().leader = next->returned;
                        }});
  }

  bool can_finish(const World& world, int attempt) const {
    return !patient_ || std::ranges::none_of(world.processes, [&](const Process& process) {
      return process.attempt == attempt && (std::ranges::find(process.ranks, Rank::failed) != process.ranks.end() ||
                                            std::ranges::find(process.ranks, Rank::killed) != process.ranks.end());
    });
  }

  void add_process_choices(const World& world, size_t i, std::vector<Choice>* choices) {
    const Process& process = world.processes[i];
    const auto add = [&](const char* name, auto body) { choices->push_back({name, i, body}); };
    if (process.any_running() && !process.is_alive) {
      add("kernel kills ranks of", [](World*, Process* p) { kill_ranks(p); });
    }
    if (world.leader_is_up() && process.is_connected && !process.to_leader.empty()) {
      add("leader hears", [this](World* w, Process* p) {
        const JobEvent event = p->to_leader.front();
        p->to_leader.erase(p->to_leader.begin());
        if (event.kind == EventKind::lost) p->is_connected = false;
        lead(w, event);
        const bool is_current = event.attempt == w->leader.policy.attempts;
        if (event.kind == EventKind::failed && is_current && w->leader.phase == JobPhase::running) {
          fail("the leader does not stop an attempt that has failed");
        }
      });
    }
    if (!process.is_alive) return;
    // A leader that has not noticed the loss yet refuses it.
    const bool is_searching = process.member.phase == MemberPhase::searching && !process.is_connected;
    if (is_searching && world.leader_is_up() && !has_process(world, process.node) &&
        world.leader.phase != JobPhase::over &&
        world.leader.nodes[static_cast<size_t>(process.node)].phase == NodePhase::absent) {
      add("finds its leader", [this](World* w, Process* p) {
        p->is_connected = true;
        p->leader = w->returned;
        p->to_leader = {{.kind = EventKind::joined, .node = p->node, .last_attempt = p->member.attempt}};
        p->to_member.clear();
        tell(w, p, {.event = MemberEvent::found});
      });
    }
    if (!process.to_member.empty()) {
      add("hears", [this](World* w, Process* p) {
        const MemberSignal signal = p->to_member.front();
        p->to_member.erase(p->to_member.begin());
        tell(w, p, signal);
      });
    }
    for (size_t rank = 0; rank < process.ranks.size(); ++rank) {
      if (process.ranks[rank] != Rank::running) continue;
      // Of ranks that are alike it does not matter which one.
      if (rank > 0 && process.ranks[rank - 1] == Rank::running) continue;
      if (!process.is_ending && can_finish(world, process.attempt))
        add("rank finishes", [rank](World*, Process* p) { p->ranks[rank] = Rank::done; });
      if (world.faults > 0) {
        add("rank dies", [rank](World* w, Process* p) {
          use_fault(w);
          p->ranks[rank] = Rank::failed;
        });
      }
    }
    const bool has_failed = std::ranges::find(process.ranks, Rank::failed) != process.ranks.end();
    if (process.has_ranks && has_failed && !process.is_noticed && !process.is_ending) {
      add("notices", [this](World* w, Process* p) {
        p->is_noticed = p->is_ending = true;
        tell(w, p, {.event = MemberEvent::rank_failed});
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
        tell(w, p, {.event = MemberEvent::ranks_ended});
      });
    }
    if (world.faults == 0) return;
    add("dies", [](World* w, Process* p) {
      use_fault(w);
      end_process(w, p);
    });
    if (process.node > 0 && process.is_connected) {
      add("is cut off", [](World* w, Process* p) {
        use_fault(w);
        p->to_leader.clear();
        p->to_member.clear();
        disconnect(w, p);
      });
    }
    if (process.member.phase == MemberPhase::ready || process.member.phase == MemberPhase::searching) {
      add("is asked to stop", [this](World* w, Process* p) {
        --w->faults;
        w->is_asked = true;
        tell(w, p, {.event = MemberEvent::asked, .exit_code = 128 + 15});
        if (p->is_alive) fail("a launcher does not stop when it is asked to");
      });
    }
  }

  void add_leader_choices(const World& world, std::vector<Choice>* choices) {
    const auto add = [&](const char* name, const JobEvent& event) {
      choices->push_back({name, kLeader, [this, event](World* next, Process*) { lead(next, event); }});
    };
    const auto has_ranks = [](const NodeView& node) {
      return node.phase == NodePhase::running || node.phase == NodePhase::ending;
    };
    const auto& nodes = world.leader.nodes;
    if (!patient_ && world.leader.phase == JobPhase::stopping &&
        std::any_of(nodes.begin() + 1, nodes.end(), has_ranks)) {
      add("leader has waited for the end", {.kind = EventKind::stop_overdue});
    }
    for (size_t n = 0; n < nodes.size(); ++n) {
      const int node = static_cast<int>(n);
      // The time is chosen so that by then a launcher that is cut off has seen it, and a dead one's ranks are gone.
      const bool is_any_left = std::ranges::any_of(world.processes, [&](const Process& p) {
        return p.node == node && (p.is_alive ? is_cut_off(p) : p.any_running());
      });
      if (nodes[n].fenced && !is_any_left) add("fence is over", {.kind = EventKind::fence_over, .node = node});
      if (nodes[n].phase == NodePhase::absent && world.restarts > 0 && n > 0 && !has_process(world, node)) {
        choices->push_back({"launcher comes back", kLeader, [node](World* next, Process*) {
                              --next->restarts;
                              next->processes.push_back(joining(node));
                            }});
      }
    }
  }

  static int numbered(int attempt, int leader) { return attempt + 50 * leader; }

  static bool is_cut_off(const Process& process) {
    return !process.is_connected ||
           std::ranges::any_of(process.to_leader, [](const JobEvent& event) { return event.kind == EventKind::lost; });
  }

  static bool has_process(const World& world, int node) {
    return std::ranges::any_of(world.processes, [&](const Process& p) { return p.node == node && p.is_connected; });
  }

  // --- what it does

  void lead(World* world, const JobEvent& event) {
    JobStep step = next_step(rules_, settings_, world->leader, event);
    world->leader = std::move(step.state);
    for (const JobAction& action : step.actions) {
      const auto process = std::ranges::find_if(
          world->processes, [&](const Process& p) { return p.node == action.node && p.is_connected; });
      if (process == world->processes.end()) continue;
      if (action.kind == JobAction::Kind::start) {
        process->share = world->leader.assignment.nodes[static_cast<size_t>(action.node)].slots.size();
        process->to_member.push_back({.event = MemberEvent::start, .attempt = action.attempt});
      } else if (action.kind == JobAction::Kind::stop) {
        process->to_member.push_back({.event = MemberEvent::stop, .attempt = action.attempt});
      } else if (action.kind == JobAction::Kind::finish) {
        process->to_member.push_back({.event = MemberEvent::finish, .exit_code = action.exit_code});
      } else {
        process->is_connected = false;
        process->to_leader.clear();
        process->to_member.push_back({.event = MemberEvent::leader_lost});
      }
    }
  }

  void tell(World* world, Process* process, const MemberSignal& signal) {
    const MemberStep step = next_step(rules_, process->member, signal);
    const int attempt = process->member.attempt;
    process->member = step.state;
    const auto say = [&](JobEvent event) {
      event.node = process->node;
      event.attempt = attempt;
      if (process->is_connected) process->to_leader.push_back(event);
    };
    switch (step.order) {
      case MemberOrder::none: break;
      case MemberOrder::start_ranks: {
        if (signal.attempt <= attempt) fail("the number of an attempt is used twice");
        process->ranks.assign(process->share, Rank::running);
        process->attempt = numbered(signal.attempt, process->leader);
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
      case MemberOrder::find_leader: break;
      case MemberOrder::tell_leaving: say({.kind = EventKind::left, .signal = signal.exit_code - 128}); break;
    }
    if (process->member.phase == MemberPhase::over && process->is_alive) end_process(world, process);
  }

  static void use_fault(World* world) {
    --world->faults;
    world->has_fault = true;
  }

  static void kill_ranks(Process* process) { std::ranges::replace(process->ranks, Rank::running, Rank::killed); }

  static void disconnect(World* world, Process* process) {
    if (!process->is_connected) return;
    if (process->node != 0) {
      // What was sent before arrives before the loss is seen.
      process->to_leader.push_back({.kind = EventKind::lost, .node = process->node});
      process->to_member.push_back({.event = MemberEvent::leader_lost});
      return;
    }
    for (Process& other : world->processes) {
      if (!other.is_connected) continue;
      if (other.node != 0) other.to_member.push_back({.event = MemberEvent::leader_lost});
      other.is_connected = false;
    }
  }

  static void end_process(World* world, Process* process) {
    process->is_alive = false;
    process->to_member.clear();
    disconnect(world, process);
  }

  const JobRules rules_;
  const JobSettings settings_;
  const World first_;
  const bool patient_;
  std::unordered_map<std::string, bool> seen_;  // true: on the way to where we are
  std::vector<const Choice*> trail_;
  std::string problem_;
  std::set<int> exit_codes_, codes_of_returned_, attempts_, worlds_;

 public:
  static Process joining(int node) {
    Process process;
    process.node = node;
    process.to_leader.push_back({.kind = EventKind::joined, .node = node});
    return process;
  }
};

struct ModelCase {
  int nodes = 2, slots = 2, faults = 2, restarts = 1, max_restarts = 1, leaders = 0;
  bool fewer = false;
  bool patient = false;
};

Model model_of(const ModelCase& size, const JobRules& rules = job_rules()) {
  JobSettings settings{.slots = std::vector<int>(static_cast<size_t>(size.nodes), size.slots),
                       .worlds = {size.nodes * size.slots},
                       .max_restarts = size.max_restarts};
  if (size.fewer) {
    for (int world = settings.worlds[0] - 1; world > 0; --world) settings.worlds.push_back(world);
  }
  World world;
  world.leader = first_state(settings);
  for (int node = 0; node < size.nodes; ++node) world.processes.push_back(Model::joining(node));
  world.faults = size.faults;
  world.restarts = size.restarts;
  world.leaders = size.leaders;
  return {rules, settings, world, size.patient};
}

TEST(JobState, EveryOrderOfEventsOfTwoMachinesWithTwoFaults) {
  Model model = model_of({});
  EXPECT_EQ(model.check(), "");
  EXPECT_GT(model.states(), 200'000u);
  EXPECT_THAT(model.exit_codes(), ElementsAre(-1, 0, 1, 75, 143));
  EXPECT_THAT(model.attempts(), ElementsAre(0, 1, 2));
  EXPECT_THAT(model.worlds(), ElementsAre(4));
}

TEST(JobState, EveryOrderOfEventsOfThreeMachinesWithOneFault) {
  Model model = model_of({.nodes = 3, .slots = 1, .faults = 1, .restarts = 0});
  EXPECT_EQ(model.check(), "");
  EXPECT_GT(model.states(), 50'000u);
}

TEST(JobState, EveryOrderOfEventsWithFewerRanks) {
  Model model = model_of({.slots = 1, .fewer = true});
  EXPECT_EQ(model.check(), "");
  EXPECT_THAT(model.worlds(), ElementsAre(1, 2));
}

TEST(JobState, EveryOrderOfEventsWithALeaderThatIsStartedAgain) {
  for (const bool fewer : {false, true}) {
    Model model = model_of({.slots = 1, .restarts = 0, .leaders = 1, .fewer = fewer});
    EXPECT_EQ(model.check(), "");
    EXPECT_TRUE(model.codes_of_returned().contains(0));
  }
  // One of the launchers may still have ranks when the leader that is back begins.
  EXPECT_EQ(model_of({.nodes = 3, .slots = 1, .faults = 1, .restarts = 0, .leaders = 1, .fewer = true}).check(), "");
}

// Without one of its rows the job hangs, runs twice at once or leaves something: the model finds it; no row is idle.
TEST(JobState, NoRowCanBeLeftOut) {
  const JobRules& all = job_rules();
  const auto found = [](const JobRules& broken) {
    std::string problem;
    for (const ModelCase& size : {ModelCase{.slots = 1, .faults = 1, .restarts = 0, .patient = true},
                                  ModelCase{.slots = 1, .patient = true}, ModelCase{.slots = 1, .faults = 1},
                                  ModelCase{.slots = 1, .faults = 1, .restarts = 0, .leaders = 1, .patient = true}}) {
      Model model = model_of(size, broken);
      problem += model.check();
      if (!model.exit_codes().contains(0)) problem += "no run succeeds";
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
  EXPECT_THAT(model_of({.slots = 1}, broken).check(), HasSubstr("two attempts run at once"));
  broken = job_rules();
  for (NodeRow& row : broken.node) {
    if (row.event == NodeEvent::failed) row.next = NodePhase::ready;  // does not wait for its end
  }
  EXPECT_NE(model_of({.slots = 2}, broken).check(), "");
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
