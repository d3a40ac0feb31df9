#include "trainer/health/step_check.h"

#include <c10/util/Exception.h>

namespace concord {

void FiniteCheck::begin(const std::vector<MicroBatch>& /*host_batches*/, int64_t number) { number_ = number; }

void FiniteCheck::watch_losses(StepAttempt* attempt) {
  attempt->launches_update = true;
  if (!stops_) return;
  losses_.emplace(attempt->losses, job_);
  attempt->finite_loss = attempt->losses.sum().to(job_.torch_device());
}

void FiniteCheck::finish(StepAttempt* attempt) {
  if (!stops_) return;
  losses_->require_finite(number_);
  losses_.reset();
  require_finite_gradient(*attempt, number_);
}

// A loss that is not finite leads to gradients that are not finite either, and these are detected first.
void FiniteCheck::explain_error() {
  if (!stops_) return;
  try {
    require_finite_losses(parts_.stages.back()->token_losses(), number_, job_);
  } catch (const c10::Error&) {
  }  // the device itself has failed; its first error is the better report
}

}  // namespace concord
