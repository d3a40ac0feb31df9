// The processes of this machine that /proc shows to this user.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace concord {

struct ProcessEntry {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t session = 0;
  char state = '?';  // 'Z': zombie, exited but not yet reaped by its parent; 'T' and 't': stopped
  std::string name;
  int64_t threads = 0;
  uint64_t start_time = 0;  // in clock ticks since boot: distinguishes two processes with the same pid
};

// Returns a snapshot of all processes, which may be outdated when it is used. Empty if /proc cannot be read.
std::vector<ProcessEntry> list_processes();

// Returns the content of /proc/<pid>/<file>; empty if it cannot be read.
std::string read_process_file(pid_t pid, const char* file);

// Parses the line of /proc/<pid>/stat. The name is in parentheses and may itself contain blanks and parentheses.
bool parse_process_stat(std::string_view line, ProcessEntry* entry);

// Returns whether |pid| is stopped, by SIGSTOP or a debugger.
bool is_stopped(pid_t pid);

}  // namespace concord
