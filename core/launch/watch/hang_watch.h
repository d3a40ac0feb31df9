// Detects ranks whose heartbeat is overdue, and determines which ranks the others wait for.
//
// Example, given const JobBoard& board:
//   HangWatch watch(board.ranks());
//   const auto is_stopped = [](int) { return false; };  // from /proc
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
  int index = 0;  // the rank of this machine that has been silent longest
  RankPhase phase{};
  double silent_seconds = 0;
  double limit_seconds = 0;
};

class HangWatch {
 public:
  explicit HangWatch(int ranks) : seen_(static_cast<size_t>(ranks)) {}

  // Returns the overdue rank that has been silent longest, if any. Call about every kTick: time in which the launcher
  // itself was suspended (Ctrl-Z, a scheduler, a laptop's lid) does not count. Calls |is_stopped| for ranks silent for
  // two ticks; a rank that is stopped for more than kStoppedLimit is overdue whatever its limit. kStoppedLimit is
  // shorter than all limits of silence, so that a stopped rank is reported within a second.
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
