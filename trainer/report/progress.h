// The progress display of a run: one line that is redrawn on a terminal, otherwise plain lines.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "platform/base/thread_safety.hpp"

namespace concord {

enum class ProgressMode { automatic, line, plain, none };  // automatic: a redrawn line on a terminal, otherwise plain

// The values to show; unknown ones are omitted.
struct Progress {
  int64_t step = 0;
  int64_t max_steps = 0;  // 0: unknown
  std::optional<double> loss = std::nullopt;
  std::vector<std::pair<std::string, double>> of_pairs = {};  // their accuracy and margin, by name
  std::optional<double> learning_rate = std::nullopt;
  std::optional<double> grad_norm = std::nullopt;
  std::string skipped = {};  // text about skipped updates; a norm that is not finite is then omitted
  std::optional<double> tokens_per_second = std::nullopt;
  std::optional<double> mfu = std::nullopt;
  int64_t memory_bytes = 0;
  std::optional<double> seconds_left = std::nullopt;
};

// Returns one line of at most |columns| characters, with a bar in the remaining space. If it does not fit, the least
// important fields are dropped first: memory, MFU, gradient norm, learning rate, tokens, time left; step and loss are
// always shown. Pure.
std::string progress_line(const Progress& progress, int64_t columns);

// Return a log line without a bar, with all known values or in at most |columns| characters. Pure.
std::string plain_line(const Progress& progress);
std::string plain_line(const Progress& progress, int64_t columns);

// Return "1:05", "2:03:04", "3 d 04:05"; "12.3k", "4.56M".
std::string duration_text(double seconds);
std::string count_text(double count);

// Draws on a file descriptor. Each redraw is one write without clearing, so nothing flickers; the terminal's width is
// queried each time, so it may be resized. Between calls a thread redraws the line every second, so that the time left
// runs down during long steps. Write errors are ignored: a closed terminal does not end the training. Threads: any.
class ProgressDisplay {
 public:
  ProgressDisplay(int file, ProgressMode mode);
  ~ProgressDisplay();
  ProgressDisplay(const ProgressDisplay&) = delete;
  ProgressDisplay& operator=(const ProgressDisplay&) = delete;

  bool is_redrawn() const { return mode_ == ProgressMode::line; }
  void logged(const Progress& progress);  // prints a permanent log line above the redrawn one
  void moved(const Progress& progress);   // only redraws, at most ten times a second
  void note(const std::string& text);     // prints whole lines above the redrawn one
  void end();  // leaves the last line unchanged, with the cursor below it; removes it if it only repeats the log

 private:
  // |above| are permanent lines, printed in the same write.
  void draw(const Progress& progress, const std::string& above) CONCORD_REQUIRES(mutex_);
  void show(const Progress& progress) CONCORD_REQUIRES(mutex_);
  void redraw_every_second();

  const int file_;
  ProgressMode mode_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_ended_ CONCORD_GUARDED_BY(mutex_) = false;
  Progress shown_ CONCORD_GUARDED_BY(mutex_);             // values of the last call
  std::string drawn_ CONCORD_GUARDED_BY(mutex_);          // content of the terminal's last line; empty: nothing drawn
  bool repeats_log_ CONCORD_GUARDED_BY(mutex_) = false;   // it shows no more than the log line above it
  double shown_at_ CONCORD_GUARDED_BY(mutex_) = 0;
  double drawn_at_ CONCORD_GUARDED_BY(mutex_) = 0;
  std::thread redrawing_;  // started by the first line that is drawn
};

}  // namespace concord
