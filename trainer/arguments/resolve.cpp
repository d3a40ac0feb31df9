// Arguments that follow from others.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/base/quoted.h"
#include "trainer/arguments/relations.h"
#include "trainer/data/sources/split.h"

namespace concord {
namespace {

// Throws ConfigError unless all |texts| are integers >= 1.
std::vector<int64_t> whole_numbers(const char* argument, const std::vector<std::string>& texts) {
  std::vector<int64_t> numbers;
  for (const std::string& text : texts) {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size() || number < 1) {
      throw ConfigError(fmt::format("{} has {}, which is not a whole number >= 1", argument, quoted(text)));
    }
    numbers.push_back(number);
  }
  return numbers;
}

void resolve_batch(int64_t world, TrainingArguments* a) {
  if (a->steps.global_batch_size <= 0 || world <= 0) return;
  const std::optional<int64_t> ranks = data_parallel_size(*a, world);
  const std::optional<int64_t> accumulation = ranks ? accumulation_of(*a, *ranks) : std::nullopt;
  const bool is_free = a->data.accumulation == 1 || a->steps.decrease_batch_size;  // else check_batch compares it
  if (accumulation && is_free) a->data.accumulation = *accumulation;
}

}  // namespace

bool evaluates(const TrainingArguments& a) {
  if (a.has_datasets) return true;  // unless the program provides none, see plan_training
  if (a.data.split.empty()) return a.evaluation.is_given() || !a.dataset.eval_name.empty();
  try {
    return parse_split(a.data.split)[static_cast<size_t>(DataPart::valid)].has_value();
  } catch (const ConfigError&) {
    return false;  // check_sources reports what is wrong
  }
}

int64_t logging_steps(const LoggingArguments& logging, int64_t total) {
  constexpr int64_t kLines = 50, kMaxSteps = 10;
  return logging.steps > 0 ? steps_of(logging.steps, total) : std::clamp<int64_t>(total / kLines, 1, kMaxSteps);
}

double eval_steps(const TrainingArguments& a) {
  constexpr double kDefaultOfHf = 500;
  if (a.evaluation.steps > 0) return a.evaluation.steps;
  return a.logging.steps > 0 ? a.logging.steps : kDefaultOfHf;
}

std::optional<int64_t> data_parallel_size(const TrainingArguments& a, int64_t world) {
  for (const int64_t size :
       {a.job.tensor_model_parallel_size, a.job.pipeline_model_parallel_size, a.job.context_parallel_size}) {
    if (size < 1 || world % size != 0) return std::nullopt;
    world /= size;
  }
  return world;
}

std::optional<int64_t> accumulation_of(const TrainingArguments& a, int64_t ranks) {
  const int64_t samples = std::max<int64_t>(1, a.data.micro_batch_size) * ranks;
  const int64_t accumulation = a.steps.global_batch_size / samples;
  const bool fits = accumulation * samples == a.steps.global_batch_size;
  if (accumulation < 1 || (!fits && !a.steps.decrease_batch_size)) return std::nullopt;
  return accumulation;
}

TrainingArguments resolve_arguments(TrainingArguments a, int64_t world) {
  if (a.job.tensor_model_parallel_size == 1) a.model_options.sequence_parallel = false;
  if (a.precision.bf16 || a.precision.fp16) {
    a.data_parallel.accumulate_allreduce_grads_in_fp32 = a.precision.main_grads_dtype == MainGradsType::fp32;
  }
  if (a.evaluation.strategy == IntervalStrategy::automatic) {
    const IntervalStrategy when = a.evaluation.steps > 0 ? IntervalStrategy::steps : IntervalStrategy::epoch;
    a.evaluation.strategy = evaluates(a) ? when : IntervalStrategy::no;
  }
  if (a.saving.resume_from == "false") a.saving.resume_from.clear();
  double& dropout = a.model_options.attention_dropout;
  if (a.preference.learns_pairs() && dropout < 0) dropout = 0;  // as TRL's disable_dropout, which is its default
  const bool needs_metric = a.best_model.load_at_end || a.best_model.patience > 0;
  if (needs_metric && a.best_model.metric.empty()) a.best_model.metric = "loss";
  resolve_batch(world, &a);
  return a;
}

std::optional<BatchRamp> batch_ramp(const StepArguments& steps) {
  if (steps.rampup_batch_size.empty()) return std::nullopt;
  const std::vector<int64_t> numbers = whole_numbers("rampup_batch_size", steps.rampup_batch_size);
  if (numbers.size() == 3) return BatchRamp{numbers[0], numbers[1], numbers[2]};
  throw ConfigError(fmt::format(
      "rampup_batch_size has {} numbers; must be three: the first batch size, what it grows by, and the samples in "
      "which it grows",
      numbers.size()));
}

std::vector<int64_t> skipped_steps(const StepArguments& steps) {
  return whole_numbers("iterations_to_skip", steps.iterations_to_skip);
}

ScheduleRequest schedule_request(const TrainingArguments& a) {
  const int64_t vpp = a.job.virtual_pipeline_model_parallel_size;
  const std::string automatic = vpp > 1 ? "interleaved" : "1f1b";
  return {.kind = a.pipeline.schedule == "auto" ? automatic : a.pipeline.schedule,
          .pp = a.job.pipeline_model_parallel_size,
          .microbatches = a.data.accumulation,
          .vpp = vpp > 1 ? vpp : 0};
}

}  // namespace concord
