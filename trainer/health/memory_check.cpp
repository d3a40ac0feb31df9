#include "trainer/health/memory_check.h"

#include <sys/sysinfo.h>

#include <algorithm>

#include "core/base/config_error.h"
#include "core/mesh/agreement.h"
#include "core/optim/offload_memory.h"
#include "trainer/planning/memory_fit.h"

namespace concord {
namespace {

// The whole memory, whatever other processes use at the moment. Tensors of the host's platform are in the memory of the
// process, swap included, and cpu.memory_limit does not count them.
int64_t device_memory(const ParallelContext& job) {
  if (!job.torch_device().is_cpu()) return job.device().memory().total_bytes;
  struct sysinfo info{};
  if (::sysinfo(&info) != 0) return INT64_MAX;
  return static_cast<int64_t>(info.totalram + info.totalswap) * info.mem_unit;
}

}  // namespace

void check_memory(const TrainingPlan& plan, ParallelContext& job) {
  if (!plan.arguments.check_memory) return;
  run_and_propagate_errors(job, [&] {
    const std::string text = memory_shortage(plan, job.layout(), job.rank(), {.device = device_memory(job)});
    if (!text.empty()) throw ConfigError(text);
  });
  const OptimizerOptions& optimizer = plan.arguments.optimizer;
  if (!optimizer.optimizer_cpu_offload && !plan.arguments.model_options.offload.is_on()) return;
  const MemoryPlan memory = plan_memory(plan, job.layout(), job.rank(), micro_batch_shape(plan));
  // A limit that is set holds for rows of any length that the run may have.
  OffloadMemory own{.fraction = optimizer.optimizer_cpu_offload ? optimizer.optimizer_offload_fraction : 0};
  for (const PlacedTensors& each : memory.tensors) {
    if (each.place != Place::host) continue;
    const int64_t bytes = optimizer.host_memory_limit > 0 ? each.bytes : each.least;
    own.bytes += bytes;
    if (each.kind == TensorClass::layer_inputs) own.layer_inputs += bytes;
  }
  check_offload_memory(job, own, optimizer.host_memory_limit);
}

std::string expected_memory(const TrainingPlan& plan, const ParallelContext& job) {
  if (job.torch_device().is_cpu() || plan.config.vision.in_use) return "";
  return "memory: " + memory_forecast(plan, job.layout(), {.device = device_memory(job)});
}

}  // namespace concord
