#include "trainer/exit_conditions.h"

#include <fmt/format.h>

#include "trainer/run_context.h"
#include "trainer/stop_request.h"

namespace concord {

double ExitConditions::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void ExitConditions::request(bool /*ends_epoch*/) {
  const StepArguments& steps = run_.plan.arguments.steps;
  const bool is_over = steps.exit_duration_in_mins > 0 && seconds() > 60 * steps.exit_duration_in_mins;
  run_.exit_reason = is_due(run_.state.global_step, steps.exit_interval) ? "exit_interval"
                     : is_over                                           ? "exit_duration_in_mins"
                                                                         : "";
  run_.control.should_training_stop |= !run_.exit_reason.empty();
}

void ExitConditions::agree_on(StepAgreement* agreement) {
  if (run_.stop->requested()) signal_ = run_.stop->signal();
  run_.control.should_training_stop |= signal_ != 0;
  agreement->add(&signal_);
}

std::string ExitConditions::reason() const {
  const int64_t step = run_.state.global_step;
  if (step >= run_.plan.max_steps) return "finished";
  if (signal_ != 0) return fmt::format("stopped by {} after step {}", stop_signal_name(signal_), step);
  return fmt::format("stopped{}{} after step {}", run_.exit_reason.empty() ? "" : " by ", run_.exit_reason, step);
}

}  // namespace concord
