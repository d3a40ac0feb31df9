#include "trainer/health/elastic_layout.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <cstring>

#include "core/base/config_error.h"
#include "core/base/job_board.h"
#include "core/mesh/rank_layout.h"
#include "core/schedule/step_schedule.h"
#include "trainer/arguments/relations.h"

namespace concord {
namespace {

// Whether the schedule and the layout allow it, which have rules of their own.
bool can_run(TrainingArguments arguments, const ElasticLayout& layout) {
  arguments.data.accumulation = layout.accumulation;
  try {
    step_schedule(schedule_request(arguments));
    check_ramp_schedules(arguments, layout.world);
    layout_of(arguments.job, layout.world);
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

}  // namespace

ElasticLayout shrink_world(const RankBudget& job, int64_t lost) {
  const int64_t replica = job.tensor * job.pipeline * job.context;
  const int64_t left = job.world - lost;
  const int64_t micro_batches = job.global_batch / job.micro_batch;
  for (int64_t replicas = left / replica; replicas > 0; --replicas) {
    if (micro_batches % replicas != 0) continue;
    return {.world = replicas * replica, .data_parallel = replicas, .accumulation = micro_batches / replicas};
  }
  return {.refusal =
              fmt::format("{} of {} ranks are left, and one replica of the model needs {} (tensor {} x pipeline {} "
                          "x context {})",
                          left, job.world, replica, job.tensor, job.pipeline, job.context)};
}

RankBudget rank_budget(const TrainingArguments& a, int64_t world) {
  RankBudget budget{.world = world,
                    .tensor = a.job.tensor_model_parallel_size,
                    .pipeline = a.job.pipeline_model_parallel_size,
                    .context = a.job.context_parallel_size,
                    .global_batch = 1,
                    .micro_batch = a.data.micro_batch_size};
  const int64_t replicas = world / (budget.tensor * budget.pipeline * budget.context);
  budget.global_batch = a.data.micro_batch_size * a.data.accumulation * replicas;
  return budget;
}

std::vector<int> allowed_world_sizes(const TrainingArguments& arguments, int64_t world) {
  const RankBudget budget = rank_budget(arguments, world);
  std::vector<int> worlds = {static_cast<int>(world)};
  for (int64_t left = world - 1; left > 0;) {
    const ElasticLayout layout = shrink_world(budget, world - left);
    if (!layout.refusal.empty()) break;
    if (can_run(arguments, layout)) worlds.push_back(static_cast<int>(layout.world));
    left = layout.world - 1;
  }
  return worlds;
}

void keep_global_batch(TrainingArguments* arguments, int64_t full, int64_t world) {
  const ElasticLayout layout = shrink_world(rank_budget(*arguments, full), full - world);
  if (layout.world != world) {
    throw ConfigError(
        fmt::format("a job for {} ranks cannot continue with {}: {}", full, world,
                    layout.refusal.empty() ? fmt::format("it can with {}", layout.world) : layout.refusal));
  }
  arguments->data.accumulation = layout.accumulation;
}

int64_t full_world() {
  const char* text = std::getenv(kFullWorldVariable);
  int64_t world = 0;
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), world);
  return world;
}

}  // namespace concord
