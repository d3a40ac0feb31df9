// Runs a process to its end, for tests that check its output and exit code.
#pragma once

#include <sys/wait.h>

#include <string>
#include <vector>

#include "tests/processes/running_process.h"

namespace concord::testing_processes {

struct EndedProcess {
  int exit_code;  // -1: terminated by a signal
  std::string out, err;
  pid_t pid;
};

inline EndedProcess run_to_end(const std::vector<std::string>& command, const ProcessSettings& settings = {}) {
  RunningProcess process(command, settings);
  const int status = process.wait();
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, process.out(), process.err(), process.pid()};
}

inline std::vector<std::string> with_front(std::vector<std::string> args, const std::vector<std::string>& front) {
  args.insert(args.begin(), front.begin(), front.end());
  return args;
}

}  // namespace concord::testing_processes
