#include "trainer/planning/plan_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/base/config_error.h"
#include "core/base/quoted.h"
#include "trainer/arguments/relations.h"

namespace concord {
namespace {

// As Megatron's update_train_iters: a last batch that would not be whole is left out, and a batch that was decreased
// counts as the one that was asked for.
int64_t steps_of_samples(const TrainingArguments& a, const DataArguments& data) {
  const int64_t samples = a.steps.train_samples;
  const int64_t full = a.steps.decrease_batch_size ? a.steps.global_batch_size
                                                   : data.micro_batch_size * data.accumulation * data.dp_size;
  int64_t steps = 0, consumed = 0;
  while (data.ramp && consumed <= data.ramp->samples && consumed <= samples) {
    consumed += data.ramp->rows_after(consumed, full);
    ++steps;
  }
  steps += std::max<int64_t>(0, samples - consumed) / full;
  if (steps > 0) return steps;
  throw ConfigError(fmt::format("train_samples {} is less than the {} samples of one step", samples, full));
}

// |epochs| may be fractional; with packed data the number of steps differs between epochs.
int64_t steps_of_epochs(const DataLoader& data, double epochs) {
  constexpr double kMaxSteps = 9e15;
  const double whole = std::floor(epochs);
  double steps = 0;
  for (int64_t epoch = 0; epoch < static_cast<int64_t>(whole) && steps < kMaxSteps; ++epoch) {
    steps += static_cast<double>(data.batches(epoch));
  }
  if (epochs > whole) {
    steps += std::ceil((epochs - whole) * static_cast<double>(data.batches(static_cast<int64_t>(whole))));
  }
  return static_cast<int64_t>(std::min(steps, kMaxSteps));
}

void check_enough_data(const TrainingArguments& a, const DataLoader& data) {
  if (data.batches(0) > 0) return;
  throw ConfigError(
      fmt::format("train_data {} has {} samples, fewer than the {} of one step (per_device_train_batch_size {} x "
                  "gradient_accumulation_steps {} x data-parallel ranks); use more data or a smaller batch",
                  quoted(data.source().name()), data.samples(), data.global_batch_size(), a.data.micro_batch_size,
                  a.data.accumulation));
}

}  // namespace

std::optional<int64_t> samples_of_steps(const DataArguments& data, int64_t steps) {
  const int64_t full = data.micro_batch_size * data.accumulation * data.dp_size;
  int64_t samples = 0;
  // A batch that grows is whole after at most this many steps.
  while (data.ramp && steps > 0 && samples <= data.ramp->samples) {
    samples += data.ramp->rows_after(samples, full);
    --steps;
  }
  int64_t rest = 0;
  if (__builtin_mul_overflow(steps, full, &rest) || __builtin_add_overflow(samples, rest, &samples)) {
    return std::nullopt;
  }
  return samples;
}

void plan_steps(TrainingPlan* plan) {
  const TrainingArguments& a = plan->arguments;
  check_enough_data(a, *plan->train_data);
  plan->max_steps = a.steps.train_samples > 0 ? steps_of_samples(a, plan->data)
                    : a.steps.max_steps > 0   ? a.steps.max_steps
                                              : steps_of_epochs(*plan->train_data, a.steps.num_train_epochs);
  plan->lr = a.lr;
  plan->lr.train_samples = a.steps.train_samples;
  plan->lr.max_steps = plan->max_steps;
  plan->lr.global_batch_size = plan->train_data->global_batch_size();
  const bool counts_samples = plan->lr.warmup_samples > 0 && plan->lr.train_samples == 0;
  if (plan->data.ramp && counts_samples && plan->lr.lr_decay_steps == 0 && plan->lr.lr_decay_samples == 0) {
    plan->lr.lr_decay_samples = samples_of_steps(plan->data, plan->max_steps).value_or(0);
  }
  const std::vector<int64_t> skipped = skipped_steps(a.steps);
  plan->skipped_steps = {skipped.begin(), skipped.end()};
  if (a.groups.decoupled_lr > 0) {
    plan->decoupled_lr = plan->lr;
    plan->decoupled_lr->learning_rate = a.groups.decoupled_lr;
    if (a.groups.decoupled_min_lr >= 0) plan->decoupled_lr->min_lr = a.groups.decoupled_min_lr;
    resolve_lr(*plan->decoupled_lr);
  }
  resolve_lr(plan->lr);  // reports errors in these now
}

}  // namespace concord
