#include "trainer/run_context.h"

#include <cmath>

#include "core/mesh/job_environment.h"

namespace concord {

RunContext::RunContext(const TrainingPlan& run_plan, ParallelContext& run_job, TrainingParts& run_parts)
    : plan(run_plan), job(run_job), parts(run_parts), heartbeat(read_job_environment().local_rank), clock(run_job) {
  const StepArguments& steps = plan.arguments.steps;
  state.max_steps = plan.max_steps;
  state.num_train_epochs =
      steps.has_length()
          ? std::ceil(static_cast<double>(plan.max_steps) / static_cast<double>(plan.train_data->batches(0)))
          : steps.num_train_epochs;
  state.is_world_process_zero = job.rank() == 0;
}

}  // namespace concord
