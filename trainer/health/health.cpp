#include "trainer/health/health.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "core/base/recovery_log.h"
#include "platform/loader/error.h"
#include "platform/loader/host.h"
#include "trainer/health/step_validator.h"
#include "trainer/run_context.h"

namespace concord {
namespace {

std::unique_ptr<StepCheck> make_step_check(RunContext& run, ReplicaCheck& replicas) {
  const TrainingArguments& a = run.plan.arguments;
  const bool stops = a.precision.stops_on_not_finite();
  if (a.faults.rerun_mode != RerunMode::validate) return std::make_unique<FiniteCheck>(run.parts, run.job, stops);
  return std::make_unique<StepValidator>(
      run.parts, run.job, replicas,
      StepValidatorOptions{
          .stops_on_not_finite = stops, .spike_factor = a.faults.spike_factor, .action = a.faults.rerun_action});
}

std::string replica_mismatch_message(const ReplicaDifference& difference, int64_t step) {
  const std::string suspect =
      difference.culprit
          ? fmt::format("the device or the memory of rank {} is suspect: run without it", *difference.culprit)
          : std::string(
                "without a majority it cannot be told which of them is wrong: test the devices and the memory "
                "of these ranks");
  return fmt::format(
      "after step {} the replicas are not equal: {}; {}, and resume from the newest checkpoint, before which they were "
      "equal",
      step, difference.text, suspect);
}

}  // namespace

Health::Health(RunContext& run)
    : LoopPart(run),
      replicas_(run.parts.data_parallel),
      step_check_(make_step_check(run, replicas_)),
      straggler_action_(run.plan.arguments.report.straggler_action) {}

bool Health::advance() {
  if (is_due(run_.state.global_step, run_.plan.arguments.faults.check_replicas_steps)) check_replicas();
  return false;
}

void Health::check_replicas() {
  const FaultArguments& faults = run_.plan.arguments.faults;
  const int64_t step = run_.state.global_step;
  if (faults.check_replicas_steps == 0 || std::exchange(checked_step_, step) == step) return;
  const std::optional<ReplicaDifference> difference = replicas_.run();
  if (!difference) return;
  const std::string message = replica_mismatch_message(*difference, step);
  if (run_.job.rank() == 0) RecoveryLog().wrong(step, difference->culprit, message);
  if (faults.on_replica_mismatch == ReplicaMismatchAction::stop) {
    if (difference->culprit) run_.job.flight().peers().blame(*difference->culprit);
    throw Error(CONCORD_STATUS_FAILED_PRECONDITION, message);
  }
  if (run_.job.rank() == 0) loader::log(CONCORD_LOG_WARN, "train", message);
}

void Health::detect_stragglers(StepReport* report) {
  report->ranks = run_.clock.take();
  if (!report->ranks) return;
  for (auto& metric : rank_metrics(*report->ranks)) report->extra.push_back(std::move(metric));
  for (const Straggler& straggler : stragglers_.add(*report->ranks)) {
    if (straggler_action_ != StragglerAction::none && run_.job.rank() == 0)
      loader::log(CONCORD_LOG_WARN, "train", to_string(straggler));
    if (straggler_action_ == StragglerAction::replace && straggler.rank == run_.job.rank())
      replace_this_rank(straggler);
  }
}

// Throws if the launcher may replace this process: it then starts all ranks again, from the latest checkpoint.
void Health::replace_this_rank(const Straggler& straggler) {
  const std::optional<int64_t> times = run_.heartbeat.begin_replacement(kMaxReplacements);
  if (!times) {
    loader::log(CONCORD_LOG_WARN, "train",
                fmt::format("rank {} is kept: it was replaced {} times already, or there is no checkpoint or no "
                            "launcher of concord to start it again",
                            straggler.rank, kMaxReplacements));
    return;
  }
  run_.job.flight().peers().blame(straggler.rank);
  throw Error(CONCORD_STATUS_UNAVAILABLE, fmt::format("{}; it is replaced (time {} of at most {})",
                                                      to_string(straggler), *times, kMaxReplacements));
}

}  // namespace concord
