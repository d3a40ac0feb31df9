// Detects ranks and devices that compute wrong numbers or are slow: checks of each step's numbers, comparisons of
// replicas, stragglers.
#pragma once

#include <cstdint>
#include <memory>

#include "core/data_parallel/replica_check.h"
#include "trainer/health/step_check.h"
#include "trainer/health/stragglers.h"
#include "trainer/loop_part.h"
#include "trainer/report/report.h"

namespace concord {

class Health final : public LoopPart {
 public:
  explicit Health(RunContext& run);

  // Returns the check of the numbers of each step, for train_step.
  StepCheck& step_check() { return *step_check_; }

  // Compares the checksums of replicated tensors, at most once per step, unless check_replicas_steps is 0. Replicas
  // that differ are logged, or throw Error (on_replica_mismatch). Waits: for all ranks.
  void check_replicas();

  // Adds the times of all ranks to |report|. Warns of stragglers, or throws Error on a straggler that is to be replaced
  // (straggler_action). All ranks get the same times and reach the same verdict. Waits: for all ranks.
  void detect_stragglers(StepReport* report);

  bool advance() override;

 private:
  void replace_this_rank(const Straggler& straggler);

  ReplicaCheck replicas_;
  int64_t checked_step_ = -1;  // step after which replicas were compared last
  std::unique_ptr<StepCheck> step_check_;
  StragglerAction straggler_action_;
  StragglerWatch stragglers_;
};

}  // namespace concord
