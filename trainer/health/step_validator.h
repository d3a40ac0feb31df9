// Computes steps with suspicious numbers again and decides whether to update, skip or stop: the executor of the state
// machine in trainer/health/rerun.h.
//
// A loss or a gradient norm that is not finite, or a spike of either, is a symptom, which all ranks detect together
// before the update. Unless spikes are detected, the update may be in the queue of the device by then; it changes
// nothing if loss or norm are not finite. A run without symptoms costs an all-reduce of one number per step, and a copy
// of the generators' state (a few integers). Threads: training thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/recovery_log.h"
#include "core/data_parallel/replica_check.h"
#include "trainer/batch_exchange.h"
#include "trainer/health/rerun.h"
#include "trainer/health/spike_window.h"
#include "trainer/health/step_check.h"

namespace concord {

class HostCopy;

struct StepValidatorOptions {
  bool stops_on_not_finite = true;  // false: such a step is skipped, as in fp16, and not a symptom
  double spike_factor = 0;          // 0: spikes are not detected
  RerunAction action = RerunAction::go_on;
};

class StepValidator final : public StepCheck {
 public:
  // All arguments except |options| must outlive the validator.
  StepValidator(TrainingParts& parts, ParallelContext& job, ReplicaCheck& replicas,
                const StepValidatorOptions& options);

  // Overrides of StepCheck; every rank calls them. After finish() the generators are in the state after one
  // computation of the step. If the run has to stop, finish() throws the same Error on all ranks; BadDevice if a device
  // is faulty. Waits: for all ranks.
  void begin(const std::vector<MicroBatch>& host_batches, int64_t number) override;
  void watch_losses(StepAttempt* attempt) override;
  void finish(StepAttempt* attempt) override;

 private:
  struct Numbers {
    double loss = 0;
    double grad_norm = 0;
  };
  struct Local;  // results of this rank before any reduction
  struct Repetition;
  struct Finding;

  Numbers numbers_of(const StepAttempt& attempt) const;
  Symptom symptom_of(const StepAttempt& attempt, const Numbers& numbers) const;
  void sum_losses(const StepAttempt& attempt);
  void reduce_grads_and_norm(const std::vector<MicroBatch>& batches, StepAttempt* attempt);
  Local examine(const StepAttempt& attempt, int64_t number) const;
  Repetition repeat(const StepInputs& inputs, Finding* finding);
  void look_for_damage(Finding* finding) const;
  StepAttempt investigate(const StepInputs& inputs, const StepAttempt& first, Finding finding);
  StepAttempt conclude(const StepInputs& inputs, const Finding& finding, const Repetition& last);
  std::vector<int64_t> exchange(const StepInputs& own, const Local& local, int64_t number, bool reproducible) const;
  std::vector<int64_t> ranks_where(bool condition) const;
  [[noreturn]] void stop(const Finding& finding, const StepAttempt& attempt, const std::string& problem) const;
  void accept(const Numbers& numbers);

  TrainingParts& parts_;
  ParallelContext& job_;
  ReplicaCheck& replicas_;
  StepValidatorOptions options_;
  RecoveryLog log_;
  SpikeWindow losses_;
  SpikeWindow grad_norms_;

  // The step that is being computed.
  const std::vector<MicroBatch>* host_batches_ = nullptr;
  std::vector<RngState> rng_;  // state of the generators before it
  int64_t number_ = 0;
  at::Tensor loss_sum_;                           // loss summed over all ranks, [1]
  std::shared_ptr<const HostCopy> loss_on_host_;  // copy of |loss_sum_|
};

}  // namespace concord
