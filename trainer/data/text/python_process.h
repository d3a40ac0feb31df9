// A child process that runs one of the program's own Python scripts: CONCORD_PYTHON, otherwise python3, with the text
// of the script, so that no file next to the program is needed. Modules are imported from that Python and from the
// absolute entries of PYTHONPATH, never from the working folder, which holds data.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "platform/base/unique_fd.hpp"

namespace concord {

// The child is terminated with the object: its input is closed, and it is killed if it is still running after half a
// second. It also exits when this process dies, if it reads its input. Threads: one at a time.
class PythonProcess {
 public:
  // |purpose| ("the tokenizer t.json") is used in messages. |most_memory| limits the address space, in bytes. Throws
  // ConfigError if Python cannot be started, with what to do.
  PythonProcess(const char* script, const std::vector<std::string>& arguments, const std::string& purpose,
                std::optional<uint64_t> most_memory = std::nullopt);
  ~PythonProcess();
  PythonProcess(const PythonProcess&) = delete;
  PythonProcess& operator=(const PythonProcess&) = delete;

  const std::string& python() const { return python_; }
  pid_t pid() const { return pid_; }
  // Return the child's standard input, a socket, because writing to one without a reader can be an error instead of
  // SIGPIPE, and its standard output. Call once each; the caller closes them before this object is destroyed.
  UniqueFd take_input() { return std::move(input_); }
  UniqueFd take_output() { return std::move(output_); }

 private:
  std::string python_;
  pid_t pid_ = -1;
  UniqueFd input_, output_;
};

}  // namespace concord
