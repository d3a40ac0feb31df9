#include "trainer/planning/memory_fit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/bytes_text.h"
#include "core/base/config_error.h"
#include "trainer/arguments/arguments.h"

namespace concord {
namespace {

constexpr int64_t kMaxRanks = 64, kMaxTensorParallel = 8;

// One way to change a run: each part is 0 for no change.
struct Change {
  bool narrow_moments = false;
  int recompute = 0;  // index of kRecompute
  int halvings = 0;   // of the micro-batch
  bool offload = false;
  int64_t shards = 1;
  int64_t tensor = 1;
  double cost = 0;
};

struct Recompute {
  double cost;
  RecomputeGranularity granularity;
  std::vector<RecomputeModule> modules;
};
const Recompute kRecompute[] = {
    {0, RecomputeGranularity::none, {}},
    {3, RecomputeGranularity::selective, {RecomputeModule::layernorm, RecomputeModule::mlp_act}},
    {17, RecomputeGranularity::selective, {RecomputeModule::layernorm, RecomputeModule::mlp}},
    {22, RecomputeGranularity::full, {}}};

// Calls visitor(change) for all changes that make sense for |a|, in no order.
template <class Visitor>
void each_change(const TrainingArguments& a, int64_t world, bool more_ranks, Visitor&& visitor) {
  const OptimizerOptions& optimizer = a.optimizer;
  const bool can_narrow = optimizer.optimizer == OptimizerType::adam && optimizer.precision == StatePrecision{};
  const auto most = more_ranks ? kMaxRanks / world : 1;
  int first = 0;
  if (a.model_options.recompute.granularity == RecomputeGranularity::selective) first = 1;
  if (a.model_options.recompute.granularity == RecomputeGranularity::full) first = 3;
  for (int recompute = first; recompute < 4; ++recompute) {
    for (int halvings = 0; a.data.micro_batch_size % (int64_t{1} << halvings) == 0; ++halvings) {
      for (int64_t shards = 1; shards <= most; shards *= 2) {
        for (int64_t tensor = 1; tensor <= std::min(most / shards, kMaxTensorParallel); tensor *= 2) {
          for (const int state : {0, 1, 2, 3}) {
            Change change{
                (state & 1) != 0, recompute == first ? 0 : recompute, halvings, (state & 2) != 0, shards, tensor, 0};
            if (change.narrow_moments && (!can_narrow || tensor > 1)) continue;  // blocks of codes are not split
            if (change.offload && optimizer.optimizer_cpu_offload) continue;
            change.cost = (change.narrow_moments ? 1 : 0) + 2.0 * halvings + (change.offload ? 40 : 0) +
                          (recompute == first ? 0 : kRecompute[recompute].cost);
            for (int64_t n = 1; n < shards; n *= 2) change.cost += 100;
            for (int64_t n = 1; n < tensor; n *= 2) change.cost += 150;
            visitor(change);
          }
        }
      }
    }
  }
}

// Sets the arguments of |change|, and lists them in |words|.
TrainingArguments changed(TrainingArguments a, const Change& change, std::vector<std::string>* words) {
  const auto set = [&](const std::string& name, const std::string& value = "") {
    words->push_back("--" + name);
    if (!value.empty()) words->push_back(value);
  };
  if (change.narrow_moments) {
    a.optimizer.precision = {StateType::block8, StateType::block8};
    set("optim", "adamw_8bit");
  }
  if (change.recompute > 0) {
    const Recompute& recompute = kRecompute[change.recompute];
    a.model_options.recompute = {.granularity = recompute.granularity, .modules = recompute.modules};
    set("recompute_granularity", std::string(name_of(recompute.granularity)));
    std::vector<std::string_view> modules;
    for (const RecomputeModule module : recompute.modules) modules.push_back(name_of(module));
    if (!modules.empty()) set("recompute_modules", fmt::format("{}", fmt::join(modules, ",")));
  }
  if (change.halvings > 0) {
    a.data.micro_batch_size >>= change.halvings;
    a.data.accumulation <<= change.halvings;
    set("per_device_train_batch_size", std::to_string(a.data.micro_batch_size));
    set("gradient_accumulation_steps", std::to_string(a.data.accumulation));
  }
  if (change.offload) {
    a.optimizer.optimizer_cpu_offload = true;
    a.optimizer.optimizer_offload_update = OffloadUpdate::device;
    set("optimizer_cpu_offload");
    set("optimizer_offload_update", "device");
  }
  if (change.shards > 1 && !a.data_parallel.use_distributed_optimizer) {
    a.data_parallel.use_distributed_optimizer = true;
    set("use_distributed_optimizer");
  }
  if (change.tensor > 1) {
    a.job.tensor_model_parallel_size *= change.tensor;
    a.model_options.sequence_parallel = true;
    set("tensor_model_parallel_size", std::to_string(a.job.tensor_model_parallel_size));
    set("sequence_parallel");
  }
  return a;
}

RankMemory largest(const TrainingArguments& arguments, int64_t world) {
  const TrainingPlan plan = plan_model(arguments);
  return largest_memory_plan(plan, layout_of(initialize_args(plan), world), micro_batch_shape(plan));
}

// Nullopt if it does not fit, or is not possible for this model and layout.
std::optional<MemoryFit> attempt(const TrainingArguments& arguments, int64_t world, const Change& change,
                                 const AvailableMemory& available) {
  MemoryFit fit{.changes = {}, .cost = change.cost, .world = world * change.shards * change.tensor, .memory = {}};
  const TrainingArguments other = changed(arguments, change, &fit.changes);
  if (fit.world > world) {
    fit.changes.insert(fit.changes.begin(), {"--nproc", std::to_string(fit.world)});
  }
  try {
    fit.memory = largest(other, fit.world).memory;
  } catch (const ConfigError&) {
    return std::nullopt;
  }
  return fits(fit.memory, available) ? std::optional(std::move(fit)) : std::nullopt;
}

// Returns the remedy: the cheapest change that fits.
std::string way_text(const TrainingPlan& plan, const RankLayout& layout, const AvailableMemory& available) {
  const std::optional<MemoryFit> fit = cheapest_fit(plan.arguments, layout.world(), available);
  return fit ? fmt::format("The cheapest change with which the run fits: {}", to_text(fit->changes))
             : "No setting that is known here makes it fit; train an adapter (finetuning_type lora) or a smaller model";
}

}  // namespace

bool fits(const MemoryPlan& memory, const AvailableMemory& available) {
  constexpr double kRuntime = 1 << 30, kFragmentation = 1.03;
  const double device = static_cast<double>(memory.peak(Place::device)) * kFragmentation + kRuntime;
  return device <= static_cast<double>(available.device) && memory.peak(Place::host) <= available.host;
}

std::optional<MemoryFit> cheapest_fit(const TrainingArguments& arguments, int64_t world,
                                      const AvailableMemory& available, bool more_ranks) {
  largest(arguments, world);  // reports what is wrong with the run itself
  std::vector<Change> changes;
  each_change(arguments, world, more_ranks, [&](const Change& change) { changes.push_back(change); });
  std::ranges::stable_sort(changes, {}, &Change::cost);
  for (const Change& change : changes) {
    if (auto fit = attempt(arguments, world, change, available)) return fit;
  }
  return std::nullopt;
}

std::string to_text(const std::vector<std::string>& changes) { return fmt::format("{}", fmt::join(changes, " ")); }

std::string memory_shortage(const TrainingPlan& plan, const RankLayout& layout, int64_t rank,
                            const AvailableMemory& available) {
  const MemoryPlan memory = plan_memory(plan, layout, rank, micro_batch_shape(plan));
  const int64_t least = memory.least(Place::device);
  if (least <= available.device) return "";
  std::string parts;
  for (const PlacedTensors& each : memory.tensors) {
    if (each.place != Place::device || each.least < least / 100) continue;
    parts +=
        fmt::format("{}{} in {} {}", parts.empty() ? "" : ", ", name_of(each.kind), each.type, bytes_text(each.least));
  }
  return fmt::format(
      "the run needs at least {} ({} bytes) of device memory on rank {}: {}; the device has {} ({} "
      "bytes). {}. `concord plan memory` with these arguments prints all of it; check_memory false "
      "starts the run anyway",
      bytes_text(least), least, rank, parts, bytes_text(available.device), available.device,
      way_text(plan, layout, available));
}

std::string memory_forecast(const TrainingPlan& plan, const RankLayout& layout, const AvailableMemory& available) {
  const MicroBatchShape rows = micro_batch_shape(plan);
  const int64_t expected = expected_in_use(largest_memory_plan(plan, layout, rows).memory.peak(Place::device));
  const std::string text = fmt::format("about {} of the {} of a device, if rows are as long as they may be",
                                       bytes_text(expected), bytes_text(available.device));
  return expected <= available.device ? text : text + ", which is too much. " + way_text(plan, layout, available);
}

}  // namespace concord
