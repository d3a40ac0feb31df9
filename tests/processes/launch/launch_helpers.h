// Shared helpers for the tests of `concord launch`.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/processes/running_process.h"
#include "tests/temporary_folder.h"

namespace concord::testing_processes {

inline std::vector<std::string> shell(const std::string& script, const std::string& marker = "") {
  return {"/bin/sh", "-c", script, marker};
}

// A running `concord launch <options> -- <command>`.
class Launch {
 public:
  Launch(std::vector<std::string> options, const std::vector<std::string>& command,
         const ProcessSettings& settings = {})
      : process_(whole_command(std::move(options), command), settings) {}

  RunningProcess& process() { return process_; }
  pid_t pid() const { return process_.pid(); }
  std::string out() const { return process_.out(); }
  std::string err() const { return process_.err(); }
  std::vector<std::string> out_lines() const { return process_.out_lines(); }

  // Waits for its exit; -1 if it did not exit or was terminated by a signal.
  int exit_code() {
    const int status = process_.wait();
    return status != -1 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  static std::vector<std::string> whole_command(std::vector<std::string> options,
                                                const std::vector<std::string>& command) {
    options.insert(options.begin(), {LAUNCH_PROGRAM, "launch"});
    if (!command.empty()) options.emplace_back("--");
    options.insert(options.end(), command.begin(), command.end());
    return options;
  }

  RunningProcess process_;
};

using tests::TemporaryFolder;

}  // namespace concord::testing_processes
