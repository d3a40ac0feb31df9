// What the ranks of a job spent their time on between two log lines, and how each compares with its peers. Pure.
//
// A rank's own time is what it spent on its steps without waiting for others. Ranks of one step take equally long, so a
// slow one does not show in their totals: it has more own time than its peers, and they wait for it in communication.
// Peers are the ranks of the same pipeline stage: other stages have other work.
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

// Of one rank, in seconds.
struct RankTimes {
  double compute = 0;        // everything else that belongs to steps: forward, backward, update, callbacks
  double data = 0;           // waiting for the next batch
  double saving = 0;         // held up by checkpoints
  double communication = 0;  // waiting for other ranks and for transfers, see core/mesh/communication_time.h

  double own() const { return compute + data + saving; }
  double of(RankActivity activity) const;
  RankTimes& operator+=(const RankTimes& other);
  bool operator==(const RankTimes&) const = default;
};

// Of all ranks, summed over the steps first_step to last_step.
struct RankTable {
  int64_t first_step = 0;
  int64_t last_step = 0;
  std::vector<RankTimes> ranks;
  std::vector<int64_t> stages;  // of the pipeline, by rank

  int64_t steps() const { return last_step - first_step + 1; }
  bool operator==(const RankTable&) const = default;
};

// Both together; |later| follows |earlier|, and has the same ranks.
RankTable merged(const RankTable& earlier, const RankTable& later);

// The value of |activity| in the middle of those of the peers of |rank|, without itself; NaN if it has none.
double peers_median(const RankTable& table, int64_t rank, RankActivity activity);
// By rank: its own time divided by the median of its peers' own times; NaN if it has no peers or these took no time.
std::vector<double> relative_own_times(const RankTable& table);

// The activity in which |rank|, which has peers, exceeds the median of its peers most; not communication.
RankActivity largest_excess(const RankTable& table, int64_t rank);

// From here on a rank is called slow, compared with its peers.
inline constexpr double kSlowRatio = 1.1;

// For a log line: the medians over all ranks, in seconds per step, and the rank that is slowest compared with its
// peers: rank_compute_seconds, rank_data_seconds, rank_saving_seconds, rank_communication_seconds, slowest_rank and
// slowest_rank_ratio; the last two only where ranks have peers.
std::vector<std::pair<std::string, double>> rank_metrics(const RankTable& table);

}  // namespace concord
