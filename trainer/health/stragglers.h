// Detects ranks that delay a job, and the cause, from the times of all ranks (trainer/report/rank_times.h). Pure.
//
// A straggler has an own time of at least kSlowRatio times the median of its peers' in two windows in a row, and at
// least kMinExcess more per step: an operating system delays any process by less. A window has at least kWindowSteps
// steps, so the noise of single steps does not count; shorter log intervals are merged. The cause is the activity with
// the largest excess. A rank that is the only one of its pipeline stage has no peers and is never reported; nor is a
// slow link, for which all of its ranks wait equally: both are visible in the times themselves.
//
// The caller decides on the action (StragglerAction).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/report/rank_times.h"

namespace concord {

inline constexpr double kMinExcess = 1e-3;  // seconds per step
inline constexpr int64_t kWindowSteps = 10;

// How often the process of a rank is replaced: if the new process is slow too, another one would not help.
inline constexpr int64_t kMaxReplacements = 2;

struct Straggler {
  int64_t rank = 0;
  double ratio = 1;  // own time / median of its peers' own times
  RankActivity cause = RankActivity::compute;
  double seconds = 0;        // seconds per step of the cause
  double peers_seconds = 0;  // median of |seconds| over its peers
  int64_t first_step = 0;
  int64_t last_step = 0;
  bool operator==(const Straggler&) const = default;
};

// "rank 3 is 24 % slower than its peers (data: 31 ms per step against 4 ms); steps 41 to 60"
std::string to_string(const Straggler& straggler);

// Returns the stragglers of two consecutive windows of the same ranks, sorted by rank.
std::vector<Straggler> find_stragglers(const RankTable& before, const RankTable& now);

// Merges log intervals into windows and remembers the reported stragglers. Ranks that add the same tables get the same
// results.
class StragglerWatch {
 public:
  // Adds a log interval. Returns the stragglers that were not reported after the last window, or have a new cause.
  std::vector<Straggler> add(const RankTable& table);

 private:
  std::optional<RankTable> open_;    // incomplete window
  std::optional<RankTable> before_;  // last complete window
  std::vector<Straggler> named_;
};

}  // namespace concord
