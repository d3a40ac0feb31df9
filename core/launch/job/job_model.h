// A model of a whole job, for its tests: the leader, the launchers, their ranks and the messages on their way, and a
// walk through everything that can happen to them by the rules of job_state.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/launch/job/job_state.h"

namespace concord::testing_job {

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

// All of a world that matters for what follows, as two hashes of it: of a million of worlds two are the same by chance
// with a probability of 10^-26.
struct WorldKey {
  uint64_t one = 0, other = 0;
  bool operator==(const WorldKey&) const = default;
};
struct WorldKeyHash {
  size_t operator()(const WorldKey& key) const { return key.one; }
};
WorldKey key_of(const World& world);

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

  static Process joining(World* world, int node, int64_t leader);
  static Process leading(World* world, const JobSettings& settings);

 private:
  struct Choice {
    const char* name;
    int64_t process;  // to which it happens
    std::function<void(World*, Process*)> apply;
  };

  void visit(World world);
  void fail(const std::string& what);
  void check_state(const World& world);
  void check_end(const World& world);

  // What can happen next.
  std::vector<Choice> choices_of(const World& world);
  static bool is_leading(const Process& process);
  static bool can_reach(const Process& one, const Process& other);
  static bool is_unsettled(const World& world, const Process& process);
  void add_leader_return(const World& world, std::vector<Choice>* choices) const;
  bool can_finish(const World& world, const Process& one) const;
  void add_rank_choices(const World& world, const Process& process, std::vector<Choice>* choices);
  void add_process_choices(const World& world, const Process& process, std::vector<Choice>* choices);
  void add_search(const World& world, const Process& process, std::vector<Choice>* choices);
  static bool is_vote_for(const Process& voter, const Process& process);
  static bool is_elected(const World& world, const Process& process);
  static void join(Process* process, int64_t leader);
  static void release_votes(World* world, const Process& process);
  JobSettings settings_of(const Process& leader) const;
  void add_leader_choices(const World& world, const Process& leader, std::vector<Choice>* choices);

  // What it does.
  void lead(World* world, Process* leader, const JobEvent& event);
  void note_end_of_job(World* world, const Process& leader, const std::vector<JobAction>& actions);
  void carry_out(World* world, Process* leader, const JobAction& action);
  static void hand_over(World* world, Process* leader);
  void tell(World* world, Process* process, const Message& message);
  void take_over(World* world, Process* process);
  static void use_fault(World* world);
  static void kill_ranks(Process* process) { std::ranges::replace(process->ranks, Rank::running, Rank::killed); }
  static void disconnect(World* world, Process* process, bool is_dead);
  static void end_process(World* world, Process* process);

  const JobRules rules_;
  const JobSettings settings_;
  const World first_;
  const bool patient_;
  const bool twins_;
  std::unordered_map<WorldKey, bool, WorldKeyHash> seen_;  // true: on the way to where we are
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

Model model_of(const ModelCase& size, const JobRules& rules = job_rules());

}  // namespace concord::testing_job
