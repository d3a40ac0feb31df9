// Real processes for tests: the ranks of a job, started by fork.
//
//   const auto outcomes = tests::run_ranks(4, [&](int rank) { ...; EXPECT_EQ(...); });
//   for (const auto& outcome : outcomes) EXPECT_TRUE(outcome.ok()) << outcome.describe();
//
// A rank has failed if it threw, if one of its GoogleTest expectations failed, or if it ended in any way except by
// returning from its body. Its outcome contains its output. On the deadline, and when a Ranks object is destroyed, the
// remaining processes are killed; none survives.
//
// Threads: fork copies only the calling thread, so the program must have no other thread when ranks are started.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace concord::tests {

struct Outcome {
  int rank = 0;
  pid_t pid = 0;
  int code = -1;          // exit code; -1 if terminated by a signal
  int signal = 0;         // 0 if it exited
  bool deadline = false;  // killed because it still ran at the deadline
  std::string output;     // standard output and error

  bool ok() const { return code == 0; }
  std::string describe() const {
    std::string how = "exit code " + std::to_string(code);
    if (signal != 0) how = "signal " + std::to_string(signal);
    if (deadline) how = "killed at the deadline";
    return "rank " + std::to_string(rank) + " (pid " + std::to_string(pid) + "): " + how + "\n" + output;
  }
};

class Ranks {
 public:
  using Body = std::function<void(int rank)>;

  Ranks(int world, const Body& body) {
    for (int rank = 0; rank < world; ++rank) start(rank, body);
  }
  ~Ranks() {
    for (Rank& rank : ranks_) {
      if (rank.running) ::kill(rank.outcome.pid, SIGKILL);
    }
    for (Rank& rank : ranks_) {
      if (rank.running) ::waitpid(rank.outcome.pid, nullptr, 0);
      ::close(rank.output);
    }
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  pid_t pid(int rank) const { return ranks_[static_cast<size_t>(rank)].outcome.pid; }
  void signal(int rank, int number) const { ::kill(pid(rank), number); }

  // Waits until all ranks have exited, or kills them at the deadline.
  std::vector<Outcome> wait(std::chrono::seconds deadline = std::chrono::seconds(120)) {
    const auto end = std::chrono::steady_clock::now() + deadline;
    while (step()) {
      if (std::chrono::steady_clock::now() < end) continue;
      for (Rank& rank : ranks_) {
        if (!rank.running) continue;
        rank.outcome.deadline = true;
        ::kill(rank.outcome.pid, SIGKILL);
      }
    }
    std::vector<Outcome> outcomes;
    for (Rank& rank : ranks_) {
      drain(rank);
      outcomes.push_back(rank.outcome);
    }
    return outcomes;
  }

 private:
  struct Rank {
    Outcome outcome;
    int output = -1;
    bool running = true;
  };

  void start(int rank, const Body& body) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
    std::fflush(nullptr);
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) std::abort();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      ::dup2(ends[1], STDOUT_FILENO);
      ::dup2(ends[1], STDERR_FILENO);
      ::_exit(run(rank, body));
    }
    ::close(ends[1]);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    Rank& entry = ranks_.emplace_back();
    entry.outcome.rank = rank;
    entry.outcome.pid = pid;
    entry.output = ends[0];
  }

  static int run(int rank, const Body& body) {
    int code = 0;
    try {
      body(rank);
      if (::testing::Test::HasFailure()) code = 1;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "threw: %s\n", error.what());
      code = 1;
    } catch (...) {
      std::fprintf(stderr, "threw something that is not an std::exception\n");
      code = 1;
    }
    std::fflush(nullptr);
    return code;
  }

  // Collects output and exits for a moment; false if no rank is left.
  bool step() {
    std::vector<pollfd> entries;
    bool running = false;
    for (Rank& rank : ranks_) {
      drain(rank);
      if (rank.running) reap(rank);
      running |= rank.running;
      entries.push_back({rank.running ? rank.output : -1, POLLIN, 0});
    }
    if (running) ::poll(entries.data(), entries.size(), 10);
    return running;
  }

  static void drain(Rank& rank) {
    char text[4096];
    ssize_t length = 0;
    while ((length = ::read(rank.output, text, sizeof text)) > 0)
      rank.outcome.output.append(text, static_cast<size_t>(length));
  }

  static void reap(Rank& rank) {
    int status = 0;
    if (::waitpid(rank.outcome.pid, &status, WNOHANG) != rank.outcome.pid) return;
    rank.running = false;
    if (WIFEXITED(status)) rank.outcome.code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) rank.outcome.signal = WTERMSIG(status);
  }

  std::vector<Rank> ranks_;
};

inline std::vector<Outcome> run_ranks(int world, const Ranks::Body& body,
                                      std::chrono::seconds deadline = std::chrono::seconds(120)) {
  return Ranks(world, body).wait(deadline);
}

// For tests in which every rank must succeed.
inline void expect_ranks(int world, const Ranks::Body& body,
                         std::chrono::seconds deadline = std::chrono::seconds(120)) {
  for (const Outcome& outcome : run_ranks(world, body, deadline)) EXPECT_TRUE(outcome.ok()) << outcome.describe();
}

}  // namespace concord::tests
