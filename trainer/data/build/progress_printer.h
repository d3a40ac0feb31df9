// Shows how far long work is, on standard error: one line that is overwritten on a terminal, a line every 10 seconds
// elsewhere. Threads: one at a time.
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
  // |name| begins the line: "data build".
  explicit ProgressPrinter(std::string name) : name_(std::move(name)) {}
  ~ProgressPrinter() { end_line(); }  // what follows, an error too, begins on a line of its own
  ProgressPrinter(const ProgressPrinter&) = delete;
  ProgressPrinter& operator=(const ProgressPrinter&) = delete;

  // |line| of the seconds so far is called only if it is shown. Cheap: may be called for every piece of the work.
  void show(const std::function<std::string(double)>& line) {
    const double now = seconds(), wait = on_terminal_ ? kSecondsOnTerminal : kSecondsElsewhere;
    if (now - last_line_ < wait) return;
    last_line_ = now;
    std::fprintf(stderr, on_terminal_ ? "\r%s: %s\033[K" : "%s: %s\n", name_.c_str(), line(now).c_str());
    std::fflush(stderr);
    shown_ = true;
  }
  // "1.00 of 2.50 GiB, 1.20 GiB/s, 1 s left".
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
