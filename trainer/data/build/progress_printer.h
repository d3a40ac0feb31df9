// Prints the progress of long work on standard error: one line that is overwritten on a terminal, otherwise a line
// every 10 seconds. Threads: one at a time.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>

namespace concord {

class ProgressPrinter {
 public:
  // |name| is the start of the line: "data build".
  explicit ProgressPrinter(std::string name) : name_(std::move(name)) {}
  ~ProgressPrinter() { end_line(); }  // later output, also an error, starts on a new line
  ProgressPrinter(const ProgressPrinter&) = delete;
  ProgressPrinter& operator=(const ProgressPrinter&) = delete;

  // Calls |line| with the seconds so far only if it is printed. Cheap: may be called for every piece of the work.
  void show(const std::function<std::string(double)>& line) {
    const double now = seconds(), wait = on_terminal_ ? kSecondsOnTerminal : kSecondsElsewhere;
    if (now - last_line_ < wait) return;
    last_line_ = now;
    std::fprintf(stderr, on_terminal_ ? "\r%s: %s\033[K" : "%s: %s\n", name_.c_str(), line(now).c_str());
    std::fflush(stderr);
    shown_ = true;
  }
  // Prints "1.00 of 2.50 GiB, 1.20 GiB/s, 1 s left".
  void show_bytes(uint64_t done, uint64_t all);

  void end_line() {
    if (on_terminal_ && shown_) std::fprintf(stderr, "\r\033[K");
    shown_ = false;
  }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr double kSecondsOnTerminal = 0.1, kSecondsElsewhere = 10;
  std::string name_;
  Clock::time_point begin_ = Clock::now();
  double last_line_ = 0;
  bool on_terminal_ = ::isatty(STDERR_FILENO) == 1;
  bool shown_ = false;
};

}  // namespace concord
