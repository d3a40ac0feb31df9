// The processes of one world: started by fork and exec of this program, so that a vendor's library sees a fresh
// process, driven over sockets, and watched: a worker that crashes, hangs or is killed is a failed test with its signal
// or exit code, and the parent continues with a new gang. The parent never loads the plugin.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "platform/conformance/processes/channel.h"

namespace concord::conformance {

// How workers are started.
struct Launch {
  std::vector<std::string> self;  // the program, and the arguments before --worker
  std::string platform;           // name, path, or empty for the loader's own choice
  bool quick = false;
  int deadline_s = 0;    // for every test; 0: each test's own
  bool verbose = false;  // what workers write to standard error is passed on immediately
  // Set in each worker; "{rank}" in a value is its rank. Several ranks on one GPU need NCCL_HOSTID=concord{rank}.
  std::vector<std::pair<std::string, std::string>> rank_environment;
  // Put before each worker's command line, with the rank and the world, unless empty: a program that becomes the
  // worker, on another host for instance.
  std::string rank_program;
};

class Gang {
 public:
  // Starts |world| workers and waits for their hello. Throws std::runtime_error with the loader's message, or with what
  // happened to a worker, if one does not start.
  Gang(const Launch& launch, int world);
  Gang(const Gang&) = delete;
  Gang& operator=(const Gang&) = delete;
  ~Gang();  // kills what is still running

  const PluginInfo& plugin() const { return plugin_; }
  int world() const { return static_cast<int>(workers_.size()); }

  // Runs a test on all ranks. Afterwards the gang is usable() only if the test passed or was skipped and all workers
  // are alive.
  TestResult run(const std::string& table_and_name, double deadline_s);
  bool usable() const { return !broken_; }

  // Asks the workers to exit and waits; passes if all that were alive exited with code 0.
  TestResult finish();

 private:
  using Clock = std::chrono::steady_clock;

  struct Worker {
    pid_t pid = -1;
    std::unique_ptr<Channel> channel;
    int stderr_fd = -1;
    std::string last_words;  // the end of what it wrote to standard error
    bool alive = false;
    bool dying = false;    // it said that it would end
    bool settled = false;  // it sent a result of the current test, or has exited
    std::optional<std::string> gather;
    std::optional<TestResult> result;
  };

  void start(int rank, const Launch& launch);
  void wait_for_hellos();
  void wait_for_input(Clock::time_point end);
  void take_messages(int rank);
  void handle(int rank, const Message& message);
  void take_last_words(Worker& worker);
  void answer_gather();
  void bury(int rank, bool expect_clean);  // reaps a worker whose channel has closed
  void note_failure(const std::string& reason);
  bool all_settled() const;
  TestResult summary() const;
  std::string step_of(int rank) const;
  void kill_all();

  std::vector<Worker> workers_;
  PluginInfo plugin_;
  bool verbose_ = false;
  int deadline_s_ = 0;
  bool broken_ = false;
  bool quitting_ = false;
  std::string first_failure_;
  int steps_fd_ = -1;
  char* steps_ = nullptr;  // one line of kStepBytes per rank, written by the workers
};

inline constexpr size_t kStepBytes = 256;
inline constexpr int kWorkerChannelFd = 3;
inline constexpr int kWorkerStepsFd = 4;

}  // namespace concord::conformance
