// Starts the program under test as a fork of a process that has loaded libtorch once (preloaded.cpp). CONCORD_PRELOADED
// names that library and CONCORD_PLUGIN_PATH the folder of the program's; without it, and if the kernel or a variable
// of the environment do not allow it, programs are started as usual.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace concord::testing_processes {

// Returns arguments for execve that point into |texts|.
inline std::vector<char*> exec_args(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

struct PreloadedStreams {
  int in, out, err;
};

// Starts |command|, with the whole |environment|, as a child of this process. Returns nullopt if it must be started in
// another way. Threads: any.
std::optional<pid_t> start_preloaded(const std::vector<std::string>& command,
                                     const std::vector<std::string>& environment, const PreloadedStreams& streams,
                                     bool ignore_hangup);

}  // namespace concord::testing_processes
