// Finds ranks that are silent for longer than they may be, and says who keeps the others waiting.
//
// Example, given const JobBoard& board:
//   HangWatch watch(board.ranks());
//   if (watch.look(board, std::chrono::steady_clock::now())) { /* ask the ranks where they are */ }
//
// Threads: plain values.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/job_board.h"
#include "core/mesh/flight_recorder.h"

namespace concord {

struct Overdue {
  int index = 0;  // the rank that was silent first, among those of this machine
  RankPhase phase{};
  double silent_seconds = 0;
  double limit_seconds = 0;
};

class HangWatch {
 public:
  explicit HangWatch(int ranks) : seen_(static_cast<size_t>(ranks)) {}

  // To be called about every kTick. The first rank that is overdue. Only time that was watched counts: a job that was
  // suspended as a whole (Ctrl-Z, a scheduler, a laptop's lid) is not hung when it goes on.
  std::optional<Overdue> look(const JobBoard& board, std::chrono::steady_clock::time_point now);

  static constexpr std::chrono::milliseconds kTick{50};

 private:
  struct Seen {
    int64_t beats = -1;
    std::chrono::steady_clock::duration silent{};
  };
  std::vector<Seen> seen_;
  std::optional<std::chrono::steady_clock::time_point> last_;
};

// What is known of a rank of a job that hangs.
struct HangEvidence {
  int64_t rank = 0;
  RankPhase phase{};
  int64_t step = 0;
  char process_state = 'S';                             // as /proc has it: R running, S sleeping, T stopped, ...
  std::optional<std::vector<GroupPosition>> positions;  // nothing: it did not answer
};

struct HangVerdict {
  std::vector<int64_t> guilty;     // ranks that others wait for and that wait for no other; empty: not known
  std::vector<std::string> lines;  // a sentence for each rank
};

// The wait-for graph over all groups: a rank that has made a call that is not finished waits for the members of that
// group that have not made it. Those who wait for nobody, do not answer or are stopped are guilty.
HangVerdict explain_hang(const std::vector<HangEvidence>& ranks);

}  // namespace concord
