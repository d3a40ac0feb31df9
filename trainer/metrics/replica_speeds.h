// Measures the speeds of the data-parallel replicas and divides the micro-batches of a step by them
// (heterogeneous_split: auto).
//
// After kWarmUpSteps steps of the process, which create communicators and fill caches, kTimedSteps steps with equal
// numbers of micro-batches are timed: the own time of a rank, without waiting for others (StepClock). A replica is as
// slow as the slowest of its ranks. Then the division is fixed for the run. Checkpoints contain the speeds, so a
// resumed run with the same number of replicas has the same division, and computes the same bits.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "trainer/loop_part.h"

namespace concord {

class ReplicaSpeeds final : public LoopPart {
 public:
  static constexpr int64_t kWarmUpSteps = 2;
  static constexpr int64_t kTimedSteps = 5;

  explicit ReplicaSpeeds(RunContext& run);

  // Waits: for all ranks, after the last timed step.
  bool advance() override;
  void save(TrainingState* state) override;
  // Throws ConfigError if the micro-batches of a step cannot be divided by the speeds in |state|.
  void restore(const TrainingState& state) override;

 private:
  std::vector<double> measured(double own_seconds) const;
  void divide(std::vector<double> speeds);

  const bool is_automatic_;
  int64_t steps_ = 0;               // of this process
  std::optional<double> begun_at_;  // own seconds before the first timed step; nullopt: not timing
  std::vector<double> speeds_;      // by replica; empty: equal numbers of micro-batches
};

// Returns the speeds of replicas, relative to the slowest of them, from the own time of every rank; |replica_of| is the
// replica of each rank.
std::vector<double> relative_speeds(const std::vector<int64_t>& own_times, const std::vector<int64_t>& replica_of,
                                    int64_t replicas);

}  // namespace concord
