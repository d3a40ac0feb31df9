// The times that the ranks of a job spent on each activity between two log lines, compared with their peers. Pure.
//
// A rank's own time is the time of its steps without waiting for others. All ranks take equally long for a step, so a
// slow one does not show in the totals: it has more own time than its peers, which wait for it in communication. Peers
// are the ranks of the same pipeline stage, since other stages have different work.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace concord {

enum class RankActivity { compute, data, saving, communication };
inline constexpr RankActivity kRankActivities[] = {RankActivity::compute, RankActivity::data, RankActivity::saving,
                                                   RankActivity::communication};
const char* to_string(RankActivity activity);

// The times of one rank, in seconds.
struct RankTimes {
  double compute = 0;        // everything else in a step: forward, backward, update, callbacks
  double data = 0;           // waiting for the next batch
  double saving = 0;         // blocked by checkpoints
  double communication = 0;  // waiting for other ranks and for transfers, see core/mesh/communication_time.h

  double own() const { return compute + data + saving; }
  double of(RankActivity activity) const;
  RankTimes& operator+=(const RankTimes& other);
  bool operator==(const RankTimes&) const = default;
};

// The times of all ranks, summed over the steps first_step to last_step.
struct RankTable {
  int64_t first_step = 0;
  int64_t last_step = 0;
  std::vector<RankTimes> ranks;
  std::vector<int64_t> stages;  // pipeline stage, by rank

  int64_t steps() const { return last_step - first_step + 1; }
  bool operator==(const RankTable&) const = default;
};

// Returns the sum of both; |later| follows |earlier|, and has the same ranks.
RankTable merged(const RankTable& earlier, const RankTable& later);

// Returns the median of |activity| over the peers of |rank|, excluding itself; NaN if it has none.
double peers_median(const RankTable& table, int64_t rank, RankActivity activity);
// Returns per rank its own time divided by the median own time of its peers; NaN if it has no peers or their time is 0.
std::vector<double> relative_own_times(const RankTable& table);

// Returns the activity, except communication, in which |rank|, which has peers, exceeds the median of its peers most.
RankActivity largest_excess(const RankTable& table, int64_t rank);

// The relative own time above which a rank is considered slow.
inline constexpr double kSlowRatio = 1.1;

// Returns values for a log line: the medians over all ranks, in seconds per step, and the slowest rank compared with
// its peers: rank_compute_seconds, rank_data_seconds, rank_saving_seconds, rank_communication_seconds, slowest_rank and
// slowest_rank_ratio; the last two only if ranks have peers.
std::vector<std::pair<std::string, double>> rank_metrics(const RankTable& table);

}  // namespace concord
