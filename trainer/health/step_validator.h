// Steps whose numbers look wrong are computed again, and the verdict decides what becomes of them: the executor of the
// state machine in trainer/health/rerun.h.
//
// A loss or a gradient norm that is not finite, or a spike of either, is a symptom; all ranks see it, before anything
// is updated: where spikes are not looked for a device may have the update in its queue by then, but changes nothing if
// one of the two is not finite. A run without symptoms pays a reduction of one number a step, and the generators' state
// (a few integers).
// Threads: the one that trains.
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
#include "trainer/step_attempt.h"

namespace concord {

class HostCopy;

struct StepValidatorOptions {
  bool stops_on_not_finite = true;  // false: such a step is skipped, as fp16 does, and is no symptom
  double spike_factor = 0;          // 0: spikes are not looked for
  RerunAction action = RerunAction::go_on;
};

class StepValidator {
 public:
  // All but |options| outlive it.
  StepValidator(TrainingParts& parts, ParallelContext& job, ReplicaCheck& replicas,
                const StepValidatorOptions& options);

  // The step up to its update; every rank calls it. Generators end where one computation leaves them. Throws Error, on
  // all ranks the same, where the step's fate is to stop: BadDevice, which is one, where a device is to blame. Waits:
  // for all ranks.
  StepAttempt compute(const std::vector<MicroBatch>& host_batches, int64_t number);

 private:
  struct Numbers {
    double loss = 0;
    double grad_norm = 0;
  };
  struct Local;  // what this rank has computed before any reduction
  struct Repetition;
  struct Finding;

  Numbers numbers_of(const StepAttempt& attempt) const;
  Symptom symptom_of(const StepAttempt& attempt, const Numbers& numbers) const;
  StepAttempt attempt(const std::vector<MicroBatch>& batches, bool may_begin);
  void sum_losses(const StepAttempt& attempt);
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
  at::Tensor loss_sum_;                           // [1], of what was measured last, over all ranks
  std::shared_ptr<const HostCopy> loss_on_host_;  // the same
};

}  // namespace concord
