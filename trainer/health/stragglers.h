// Which ranks hold up a job, and by what: the verdict on the times of all ranks (trainer/report/rank_times.h). Pure.
//
// A straggler has an own time of at least kSlowRatio times the median of its peers' in two windows in a row, and at
// least kMinExcess more per step: shorter delays are what an operating system does to any process. A window has at
// least kWindowSteps steps, so the noise of single steps does not count; shorter log intervals are put together. The
// cause is the activity with the largest excess. A rank that is the only one of its pipeline stage has no peers and is
// never named; nor is a slow link, which all of its ranks wait for alike: both show in the times themselves.
//
// What follows is for the caller to decide (StragglerAction).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/report/rank_times.h"

namespace concord {

inline constexpr double kMinExcess = 1e-3;  // seconds per step
inline constexpr int64_t kWindowSteps = 10;

enum class StragglerAction {
  none,     // the times are measured and reported, nothing else
  warn,     // one line when a rank becomes one, or for another cause
  replace,  // and the rank ends, so that its launcher starts the job again with a new process for it
};
// How often the process of a rank is replaced: where a new one is slow too, another would not help.
inline constexpr int64_t kMaxReplacements = 2;
// |name| is one of --straggler_action. Throws ConfigError for another.
StragglerAction straggler_action(const std::string& name);

struct Straggler {
  int64_t rank = 0;
  double ratio = 1;  // of its own time to the median of its peers'
  RankActivity cause = RankActivity::compute;
  double seconds = 0;        // per step, that it spent on the cause
  double peers_seconds = 0;  // the median of its peers'
  int64_t first_step = 0;
  int64_t last_step = 0;
  bool operator==(const Straggler&) const = default;
};

// "rank 3 is 24 % slower than its peers (data: 31 ms per step against 4 ms); steps 41 to 60"
std::string to_string(const Straggler& straggler);

// The stragglers of two windows in a row, which have the same ranks; in the order of their ranks.
std::vector<Straggler> find_stragglers(const RankTable& before, const RankTable& now);

// Puts log intervals together to windows and remembers who is named. Every rank of a job that gives the same tables
// comes to the same verdicts.
class StragglerWatch {
 public:
  // The next log interval. Returns the stragglers that were not named after the last window, or for another cause.
  std::vector<Straggler> add(const RankTable& table);

 private:
  std::optional<RankTable> open_;    // a window that is not complete yet
  std::optional<RankTable> before_;  // the last complete one
  std::vector<Straggler> named_;
};

}  // namespace concord
