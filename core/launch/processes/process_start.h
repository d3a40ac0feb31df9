// Starting one process: what is prepared before fork, what happens between fork and exec, and what comes back.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/unique_fd.hpp"

namespace concord {

// Returns the file that |name| refers to in a shell: a path if it contains '/', else the first match on |path|
// ("/bin:/usr/bin"). Throws ConfigError with the paths that were tried.
std::string find_program(std::string_view name, std::string_view path);

struct ProcessCommand {
  std::string program;                   // a file, as find_program gives it
  std::vector<std::string> arguments;    // with the program's name first
  std::vector<std::string> environment;  // "NAME=value", all there is
  bool takes_stdin = false;              // else it reads /dev/null
  int standard_input = -1;               // or this
  int output = -1;                       // its standard output and standard error; else they come back as pipes
  int guard_fd = -1;                     // see SessionGuard
  int guard_slot = 0;
};

struct StartedProcess {
  pid_t pid = -1;
  UniqueFd out;  // non-blocking read ends of its standard output and standard error, unless it has an output
  UniqueFd err;
};

// Starts it as the leader of a session of its own (so a signal can reach all it starts, and the terminal's Ctrl-C
// reaches the launcher alone), and so that the kernel kills it when the calling thread ends. Signals have their
// defaults in it. Waits until exec has worked; throws std::system_error if fork or exec has not.
StartedProcess start_process(const ProcessCommand& command);

// fork() with every signal blocked in the new process, so that none reaches a handler of the old one there.
pid_t fork_with_signals_blocked();

}  // namespace concord
