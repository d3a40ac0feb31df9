// The list of tests: what each is called, what it needs, how expensive it is, and on how many ranks it runs.
//
// A test is a function of a Context. Each file of tests has one add_*_tests function that puts them into a Registry;
// all_tests() calls them all. The same list is made in the parent, which plans, and in the workers, which run.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace concord::conformance {

class Context;

enum class Cost { kQuick, kFull };  // kFull is skipped by --quick

// How the processes of a test are treated.
enum class Processes {
  kShared,  // runs in processes that other tests used before
  kFresh,   // gets processes of its own, which end afterwards: for tests that break something
  kEnd,     // has no function: it ends the shared processes and passes if they exit with code 0
};

struct Test {
  std::string table;  // "comm"
  std::string name;   // like "AllReduceSumOfF32MatchesTheReference"
  std::function<void(Context&)> body;

  std::vector<std::string> needs = {};  // capabilities that must not be 0
  Cost cost = Cost::kQuick;
  int least_world = 1;
  int most_world = 1;  // least == most == 1: a test of one process, whose name says no number of ranks
  Processes processes = Processes::kShared;
  double deadline_s = 60;  // ends a hang; far above what the test takes

  bool runs_on(int world) const { return world >= least_world && world <= most_world; }
  // "comm.AllReduceSumOfF32MatchesTheReferenceOnTwoRanks"
  std::string full_name(int world) const;
};

inline constexpr int kAnyWorld = 1 << 20;

class Registry {
 public:
  void add(Test test);  // throws std::logic_error if the name is taken
  const std::vector<Test>& tests() const { return tests_; }
  const Test* find(const std::string& table_and_name) const;  // "comm.AllReduce..."; null if there is none

 private:
  std::vector<Test> tests_;
};

// Every test of the kit, in the order of the tables.
const Registry& all_tests();

// The worlds of {1, 2, 3, 4, 8} up to |largest|, and |largest| itself.
std::vector<int> worlds_up_to(int largest);

void add_core_tests(Registry& registry);
void add_device_tests(Registry& registry);
void add_memory_tests(Registry& registry);
void add_stream_tests(Registry& registry);
void add_event_tests(Registry& registry);
void add_rng_tests(Registry& registry);
void add_collective_tests(Registry& registry);     // comm, by value
void add_special_value_tests(Registry& registry);  // comm: NaN, infinity, denormals, extremes
void add_transfer_tests(Registry& registry);       // comm: all_to_all_v and p2p
void add_comm_tests(Registry& registry);           // comm: set-up, split, arguments
void add_comm_order_tests(Registry& registry);     // comm: streams, communicators, threads
void add_comm_fault_tests(Registry& registry);     // comm: lost, silent, disagreeing ranks; abort
void add_leak_tests(Registry& registry);           // every table that creates something

}  // namespace concord::conformance
