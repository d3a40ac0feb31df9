// Settings with which a run fits into a given memory: the cheapest changes of its arguments, by the plan of its memory.
// Pure; needs no libtorch. Threads: any.
//
// Changes, and what each costs: recomputation in percent of the speed of 0.5B and 1.5B models on an H200
// (docs/results/h200-training.md), the others as a ranking:
//   --optim adamw_8bit                                          1    moments in 8-bit blocks
//   half the micro-batch, twice the accumulation                2    each time
//   --recompute_granularity selective, layernorm, mlp_act       3
//   --recompute_granularity selective, layernorm, mlp          17
//   --recompute_granularity full                               22
//   --optimizer_cpu_offload, --optimizer_offload_update device 40    needs host memory: 12 bytes per parameter
//   twice the ranks, with use_distributed_optimizer           100    each time; the state is sharded
//   twice the ranks, with tensor and sequence parallelism     150    each time, up to 8; weights are split too
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "trainer/planning/memory_plan.h"

namespace concord {

// Memory of a device and of the host, in bytes.
struct AvailableMemory {
  int64_t device = 0;
  int64_t host = std::numeric_limits<int64_t>::max();
};

struct MemoryFit {
  std::vector<std::string> changes;  // arguments that differ, as on the command line; empty: the run fits as it is
  double cost = 0;
  int64_t world = 1;
  MemoryPlan memory;
};

// Whether the predicted peak leaves room for what the plan does not count: 1 GiB and 3 percent.
bool fits(const MemoryPlan& memory, const AvailableMemory& available);

// Returns the cheapest changes with which the run fits; nullopt if none do. |arguments| are resolved. |more_ranks|:
// changes may increase the number of ranks. Throws ConfigError as plan_model() does.
std::optional<MemoryFit> cheapest_fit(const TrainingArguments& arguments, int64_t world,
                                      const AvailableMemory& available, bool more_ranks = true);

// Returns the arguments as one line: "--optim adamw_8bit --recompute_granularity full".
std::string to_text(const std::vector<std::string>& changes);

// Returns the message for a run that cannot fit: what it needs at least, what there is, and the cheapest change that
// fits. Empty if it may fit: if its certain bytes (MemoryPlan::least) are at most |available|.device.
std::string memory_shortage(const TrainingPlan& plan, const RankLayout& layout, int64_t rank,
                            const AvailableMemory& available);

// Returns what the rank that needs most memory is expected to have in use, compared with |available|.device, and, if
// that is too little, the cheapest change that fits. For rows of the greatest length: shorter ones may fit.
std::string memory_forecast(const TrainingPlan& plan, const RankLayout& layout, const AvailableMemory& available);

}  // namespace concord
