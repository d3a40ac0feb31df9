// Finds ranks that are silent for longer than they may be, and says who keeps the others waiting.
//
// Example, given const JobBoard& board:
//   HangWatch watch(board.ranks());
//   const auto is_stopped = [](int) { return false; };  // as /proc says
//   if (watch.look(board, std::chrono::steady_clock::now(), is_stopped)) { /* ask the ranks where they are */ }
//
// Threads: plain values.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/job_board.h"
#include "core/mesh/watch/flight_recorder.h"

namespace concord {

struct TimedOutRank {
  int index = 0;  // the rank that was silent first, among those of this machine
  RankPhase phase{};
  double silent_seconds = 0;
  double limit_seconds = 0;
};

class HangWatch {
 public:
  explicit HangWatch(int ranks) : seen_(static_cast<size_t>(ranks)) {}

  // To be called about every kTick. The first rank that is overdue. Only time that was watched counts: a job that was
  // suspended as a whole (Ctrl-Z, a scheduler, a laptop's lid) is not hung when it goes on. Whatever its limit, a rank
  // may not be stopped for longer than kStoppedLimit: |is_stopped| is asked of those that have been silent for two
  // ticks. It is shorter than any limit of silence, since there is nothing to learn about a process that cannot run:
  // with the answers of the others such a rank is named within a second.
  std::optional<TimedOutRank> look(const JobBoard& board, std::chrono::steady_clock::time_point now,
                                   const std::function<bool(int index)>& is_stopped);

  static constexpr std::chrono::milliseconds kTick{50};
  static constexpr std::chrono::milliseconds kStoppedLimit{500};

 private:
  struct Seen {
    int64_t beats = -1;
    std::chrono::steady_clock::duration silent{};
    std::chrono::steady_clock::duration stopped{};
  };
  std::vector<Seen> seen_;
  std::optional<std::chrono::steady_clock::time_point> last_;
};

// State of a rank of a job that hangs.
struct HangEvidence {
  int64_t rank = 0;
  RankPhase phase{};
  int64_t step = 0;
  char process_state = 'S';                             // as in /proc: R running, S sleeping, T stopped, ...
  std::optional<std::vector<GroupPosition>> positions;  // nullopt: it did not answer
};

struct HangVerdict {
  std::vector<int64_t> culprits;   // ranks that others wait for and that wait for no other; empty: not known
  std::vector<std::string> lines;  // a message for each rank
};

// The wait-for graph over all groups: a rank that has made a call that is not finished waits for the members of that
// group that have not made it. Ranks that are stopped or wait for no other are culprits. Ranks that have started and do
// not answer are culprits only if there are no others: on a busy machine a rank may be too slow to answer.
HangVerdict diagnose_hang(const std::vector<HangEvidence>& ranks);

}  // namespace concord
