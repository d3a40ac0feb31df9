// Carries the output of all ranks of this machine: to standard output and standard error, line by line with the rank in
// front, or to a file per rank. One poll waits for everything, the launcher's signals included. Reading stops while the
// other side does not keep up: the ranks then wait in write(), as they would without a launcher. Not thread-safe.
#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/launch/processes/line_prefixer.h"
#include "core/launch/processes/output_sink.h"
#include "core/launch/processes/process_start.h"

namespace concord {

struct OutputStyle {
  std::string log_dir;  // a folder for rank-3.log; empty for standard output and standard error
  bool prefix = true;   // "[rank 3] " in front of each line; without it the bytes are passed on as they are
};

class OutputRelay {
 public:
  // Makes the folder and its files; throws ConfigError if it cannot.
  OutputRelay(const OutputStyle& style, int first_rank, int ranks);

  int first_rank() const { return first_rank_; }
  void set_first_rank(int first_rank) { first_rank_ = first_rank; }  // for the next attempt; files keep their names
  // Takes over the pipes of a process; |index| counts from first_rank.
  void attach(int index, StartedProcess* process);

  struct Waited {
    bool anything = false;  // something was read or written, or woke
    bool signals = false;   // |signal_fd| is readable
  };
  // Waits until there is something to read or write or |signal_fd| is readable, at most until |deadline|, and moves
  // bytes.
  using Deadline = std::optional<std::chrono::steady_clock::time_point>;
  Waited wait(int signal_fd, Deadline deadline);

  // Once the processes have exited and wait() has found nothing more: ends the last lines and closes the pipes.
  void detach_all();

  bool has_backlog() const;                  // something still waits to be written
  void say(std::string_view line);           // a line of the launcher's own, to standard error
  void note_in_logs(std::string_view line);  // a line into each rank's log file, if there are any

  // The last lines that rank |index| has written to standard error, at most |lines|.
  std::vector<std::string> last_error_lines(int index, size_t lines) const;

 private:
  struct Stream {
    UniqueFd pipe;
    OutputSink* sink = nullptr;
    LinePrefixer lines;
    std::string* tail = nullptr;  // standard error only
  };

  std::vector<OutputSink*> sinks();
  void read_some(Stream* stream);
  void report_broken_sinks();

  OutputStyle style_;
  int first_rank_;
  OutputSink stdout_;
  OutputSink stderr_;
  std::deque<OutputSink> logs_;  // one per rank, or none; a deque because streams point into it
  std::vector<Stream> streams_;
  std::vector<std::string> tails_;
};

}  // namespace concord
