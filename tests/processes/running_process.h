// A process under test: started with its output captured, signalled, and waited for. Its deadlines only end a hang.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace concord::testing_processes {

constexpr std::chrono::seconds kHang{60};  // far more than anything here takes

// Waits until |condition| holds; false after a timeout.
template <class Condition>
bool poll_until(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + kHang;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

struct ProcessSettings {
  std::vector<std::string> environment = {};  // "NAME=value", added to this process's
  std::string input = {};                     // content of standard input
  bool read_output = true;                    // false: its output is not read until start_reading()
  bool ignore_hangup = false;                 // like nohup
};

class RunningProcess {
 public:
  RunningProcess(const std::vector<std::string>& command, const ProcessSettings& settings = {});
  ~RunningProcess();  // kills it if it still runs
  RunningProcess(const RunningProcess&) = delete;
  RunningProcess& operator=(const RunningProcess&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int signal) const;
  void start_reading();
  void close_output();  // like a reader that exits; before start_reading()

  // Waits until standard output or standard error contains |text| at least |times|; a test failure after a minute.
  bool wait_for_text(const std::string& text, int times = 1);
  bool has_ended();  // never waits
  // Waits for its exit and the end of its output. Returns waitpid's status; -1 and a test failure after a minute.
  int wait();

  std::string out() const;
  std::string err() const;
  std::vector<std::string> out_lines() const;

 private:
  void read_all(int fd, std::string* text);

  pid_t pid_ = -1;
  int out_fd_ = -1;
  int err_fd_ = -1;
  bool ended_ = false;
  int status_ = -1;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string out_;
  std::string err_;
  int open_streams_ = 0;
  std::vector<std::thread> readers_;
};

// Returns the path of a program on the PATH, or "". Looked up when the test runs, since it may be installed after
// configuring.
std::string find_program(const std::string& name);

std::string command_line(pid_t pid);

// Returns all processes whose command line contains |marker|, except zombies.
std::vector<pid_t> processes_with(const std::string& marker);

// Waits until no process has |marker| in its command line; false if one still has after a minute.
bool all_gone(const std::string& marker);

// Waits until |pid| no longer exists (a zombie does exist); false after a minute.
bool is_gone(pid_t pid);

// Returns a text that no other process of this machine has in its command line.
std::string unique_marker();

}  // namespace concord::testing_processes
