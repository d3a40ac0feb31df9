// The processes of this machine, as /proc shows them to this user.
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
  char state = '?';  // 'Z' is a zombie: it has ended and waits for its parent to notice; 'T' and 't' are stopped
  std::string name;
  int64_t threads = 0;
  uint64_t start_time = 0;  // in clock ticks since boot: tells apart two processes that had the same number
};

// A snapshot: processes may have started or ended by the time it is used. Empty if /proc cannot be read.
std::vector<ProcessEntry> list_processes();

// What /proc/<pid>/<file> holds; empty if it cannot be read.
std::string read_process_file(pid_t pid, const char* file);

// One line of /proc/<pid>/stat. The name is in parentheses and may itself contain blanks and parentheses.
bool parse_process_stat(std::string_view line, ProcessEntry* entry);

// Whether it is stopped, by SIGSTOP or a debugger.
bool is_stopped(pid_t pid);

}  // namespace concord
