// Checks of the numbers of a step before its update: FiniteCheck here, and StepValidator, which computes suspicious
// steps again. train_step calls them in this order: begin, watch_losses, finish. Threads: training thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "trainer/health/loss_check.h"
#include "trainer/train_step.h"

namespace concord {

class StepCheck {
 public:
  virtual ~StepCheck() = default;

  // Call before step |number| is computed from |host_batches|, which must live until finish().
  virtual void begin(const std::vector<MicroBatch>& host_batches, int64_t number) = 0;
  // Call after run_or_replay. Starts to copy the losses to the host, and sets |attempt|'s conditions for an update
  // that the device applies before the host knows the numbers. May wait for all ranks.
  virtual void watch_losses(StepAttempt* attempt) = 0;
  // Call after measure. May replace |attempt| by a repetition, or mark it as skipped. Throws Error if the run has to
  // stop.
  virtual void finish(StepAttempt* attempt) = 0;
  // Call if the step threw an Error. Throws a more precise one if the cause is known.
  virtual void explain_error() {}
};

// Each rank checks its own numbers. A loss or gradient that is not finite ends the run, or the step has no update.
class FiniteCheck final : public StepCheck {
 public:
  // With |stops|, finish() throws Error with the step and, for a loss, the rank and the micro-batch. |parts| and |job|
  // must outlive the check.
  FiniteCheck(const TrainingParts& parts, ParallelContext& job, bool stops) : parts_(parts), job_(job), stops_(stops) {}

  void begin(const std::vector<MicroBatch>& host_batches, int64_t number) override;
  void watch_losses(StepAttempt* attempt) override;
  void finish(StepAttempt* attempt) override;
  void explain_error() override;

 private:
  const TrainingParts& parts_;
  ParallelContext& job_;
  const bool stops_;
  int64_t number_ = 0;
  std::optional<LossCheck> losses_;
};

}  // namespace concord
