// The progress of a run, for a person: one line that is redrawn on a terminal, plain lines elsewhere.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace concord {

enum class ProgressMode {
  automatic,
  line,
  plain,
  none
};  // automatic: a line that is redrawn on a terminal, else plain

// What is shown; unknown values are omitted.
struct Progress {
  int64_t step = 0;
  int64_t max_steps = 0;  // 0: not known
  std::optional<double> loss = std::nullopt;
  std::optional<double> learning_rate = std::nullopt;
  std::optional<double> grad_norm = std::nullopt;
  std::string skipped = {};  // what became of updates that were not made; a norm that is not finite is left out then
  std::optional<double> tokens_per_second = std::nullopt;
  std::optional<double> mfu = std::nullopt;
  int64_t memory_bytes = 0;
  std::optional<double> seconds_left = std::nullopt;
};

// Pure. One line of at most |columns| characters, with a bar in the room that is left. If there is too little room, the
// least important is dropped first: memory, MFU, gradient norm, learning rate, tokens, time left; step and loss stay.
std::string progress_line(const Progress& progress, int64_t columns);

// Pure. The same as one line of a log, with all that is known, or without a bar in at most |columns| characters.
std::string plain_line(const Progress& progress);
std::string plain_line(const Progress& progress, int64_t columns);

// "1:05", "2:03:04", "3 d 04:05"; "12.3k", "4.56M".
std::string duration_text(double seconds);
std::string count_text(double count);

// Draws on a file descriptor. One write per redraw and no clearing before it, so nothing flickers; the width of the
// terminal is queried each time, so it may be resized. Write errors are ignored: a closed terminal does not end the
// training. Threads: one at a time.
class ProgressDisplay {
 public:
  ProgressDisplay(int file, ProgressMode mode);
  ~ProgressDisplay() { end(); }
  ProgressDisplay(const ProgressDisplay&) = delete;
  ProgressDisplay& operator=(const ProgressDisplay&) = delete;

  void logged(const Progress& progress);  // a line of the log, which stays; the one that is redrawn is below it
  void moved(const Progress& progress);   // redraws only, and only ten times a second
  void note(const std::string& text);     // whole lines, above the one that is redrawn
  void end();  // leaves the last line as it is, the cursor below it; one that says what was just logged goes

 private:
  // |above| are whole lines that stay, in the same write.
  void draw(const Progress& progress, const std::string& above);

  int file_;
  ProgressMode mode_;
  std::string drawn_;         // what the terminal's last line shows; empty: nothing of ours
  bool repeats_log_ = false;  // it says no more than the logged line above it
  double drawn_at_ = 0;
};

}  // namespace concord
