#include "trainer/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/config_error.h"
#include "core/mesh/rank_layout.h"
#include "core/quoted.h"
#include "core/schedule/step_schedule.h"
#include "trainer/training_state.h"

namespace concord {
namespace {

RankLayout layout_of(const TrainingArguments& a, const Schedule& schedule, int64_t world) {
  return RankLayout({.world = world,
                     .tensor = a.tensor_model_parallel_size,
                     .context = a.context_parallel_size,
                     .pipeline = a.pipeline_model_parallel_size,
                     .virtual_pipeline = schedule.vpp,
                     .order = a.order});
}

std::vector<StageLayers> stages_of(const TrainingArguments& a, const ModelConfig& config, const Schedule& schedule) {
  if (!a.pipeline_model_parallel_layout.empty()) {
    return parse_layer_layout(a.pipeline_model_parallel_layout, config.num_hidden_layers, schedule.pp);
  }
  return deal_layers({.num_layers = config.num_hidden_layers,
                      .pp = schedule.pp,
                      .vpp = schedule.vpp,
                      .account_for_embedding_in_pipeline_split = a.account_for_embedding_in_pipeline_split,
                      .account_for_loss_in_pipeline_split = a.account_for_loss_in_pipeline_split,
                      .placement = placement_of(schedule)});
}

int64_t longest_sample(const TrainingArguments& a, const ModelConfig& config) {
  if (a.seq_length > config.max_position_embeddings) {
    throw ConfigError(fmt::format("seq_length {} is greater than the model's max_position_embeddings {}; reduce it",
                                  a.seq_length, config.max_position_embeddings));
  }
  return a.seq_length > 0 ? a.seq_length : config.max_position_embeddings;
}

// The model's own, unless another one is given. A new model has none and uses bytes.
std::string tokenizer_of(const TrainingArguments& a) {
  if (!a.tokenizer.empty()) return a.tokenizer;
  if (a.model.empty()) return "byte";
  std::error_code ignored;
  return std::filesystem::exists(std::filesystem::path(a.model) / "tokenizer.json", ignored) ? a.model : "";
}

DataArguments data_arguments(const TrainingArguments& a, const ModelConfig& config, const RankLayout& layout,
                             int64_t rank) {
  const int64_t context = a.context_parallel_size > 1 ? 2 * a.context_parallel_size : 1;
  return {.path = a.train_data,
          .tokenizer = tokenizer_of(a),
          .chat_template = a.template_name,
          .seq_length = longest_sample(a, config),
          .vocab_size = config.vocab_size,
          .micro_batch_size = a.per_device_train_batch_size,
          .accumulation = a.gradient_accumulation_steps,
          .dp_rank = layout.coordinates(rank).dp,
          .dp_size = layout.dp(),
          .seed = a.data_seed > 0 ? a.data_seed : a.seed,
          .shuffle = a.shuffle,
          .packing = a.sequence_packing,
          .pad_multiple = context * (a.sequence_parallel ? a.tensor_model_parallel_size : 1),
          .prefetch = a.dataloader_prefetch_factor};
}

std::unique_ptr<DataLoader> open_train_data(const TrainingArguments& a, DataArguments data,
                                            std::unique_ptr<SampleSource> source) {
  if (a.max_steps > 0) {
    int64_t samples = 0;
    if (__builtin_mul_overflow(a.max_steps, data.micro_batch_size * data.accumulation, &samples) ||
        __builtin_mul_overflow(samples, data.dp_size, &samples)) {
      throw ConfigError(
          fmt::format("max_steps {} x per_device_train_batch_size {} x gradient_accumulation_steps {} x {} "
                      "data-parallel ranks overflows a 64-bit sample count; use a smaller max_steps",
                      a.max_steps, data.micro_batch_size, data.accumulation, data.dp_size));
    }
    data.samples_wanted = samples;
  }
  return source ? std::make_unique<DataLoader>(data, std::move(source)) : std::make_unique<DataLoader>(data);
}

// Every sample once, in data order. As many micro-batches as there are stages keep a pipeline full.
std::unique_ptr<DataLoader> open_eval_data(const TrainingArguments& a, DataArguments data,
                                           std::unique_ptr<SampleSource> source) {
  data.path = a.eval_data;
  data.micro_batch_size = a.per_device_eval_batch_size;
  data.accumulation = a.pipeline_model_parallel_size;
  data.shuffle = false;
  data.drop_last = false;
  if (source) return std::make_unique<DataLoader>(data, std::move(source));
  return a.eval_data.empty() ? nullptr : std::make_unique<DataLoader>(data);
}

// |epochs| may be fractional; with packed data the number of steps differs between epochs.
int64_t steps_of_epochs(const DataLoader& data, double epochs) {
  constexpr double kMost = 9e15;
  const double whole = std::floor(epochs);
  double steps = 0;
  for (int64_t epoch = 0; epoch < static_cast<int64_t>(whole) && steps < kMost; ++epoch) {
    steps += static_cast<double>(data.batches(epoch));
  }
  if (epochs > whole) {
    steps += std::ceil((epochs - whole) * static_cast<double>(data.batches(static_cast<int64_t>(whole))));
  }
  return static_cast<int64_t>(std::min(steps, kMost));
}

void check_enough_data(const TrainingArguments& a, const DataLoader& data) {
  if (data.batches(0) > 0) return;
  throw ConfigError(
      fmt::format("train_data {} has {} samples, fewer than the {} of one step (per_device_train_batch_size {} x "
                  "gradient_accumulation_steps {} x data-parallel ranks); use more data or a smaller batch",
                  quoted(a.train_data), data.samples(), data.global_batch_size(), a.per_device_train_batch_size,
                  a.gradient_accumulation_steps));
}

// A step without a backward pass updates no weights; evaluation has its own schedule.
void check_trains(const Schedule& schedule) {
  if (!is_forward_only(schedule)) return;
  throw ConfigError(
      fmt::format("pipeline_schedule '{}' has no backward pass, so nothing would be trained; choose another kind "
                  "(`concord schedule --help` lists them)",
                  schedule.kind));
}

LrArguments lr_arguments(const TrainingArguments& a, int64_t max_steps, int64_t global_batch_size) {
  return {.lr_scheduler_type = a.lr_scheduler_type,
          .lr_scheduler_kwargs = a.lr_scheduler_kwargs,
          .learning_rate = a.learning_rate,
          .min_lr = a.min_lr,
          .lr_warmup_init = a.lr_warmup_init,
          .warmup_steps = a.warmup_steps,
          .warmup_samples = a.warmup_samples,
          .warmup_ratio = a.warmup_ratio,
          .lr_decay_steps = a.lr_decay_steps,
          .lr_wsd_decay_steps = a.lr_wsd_decay_steps,
          .lr_wsd_decay_style = a.lr_wsd_decay_style,
          .weight_decay = a.weight_decay,
          .start_weight_decay = a.start_weight_decay,
          .end_weight_decay = a.end_weight_decay,
          .weight_decay_incr_style = a.weight_decay_incr_style,
          .max_steps = max_steps,
          .global_batch_size = global_batch_size,
          .lr_step_offset = a.lr_step_offset};
}

}  // namespace

std::optional<LossScaler> make_scaler(const TrainingArguments& a) {
  if (!a.fp16) return std::nullopt;
  LossScalerSettings settings;
  settings.constant = a.loss_scale;
  settings.initial_scale = a.initial_loss_scale;
  settings.min_scale = a.min_loss_scale;
  settings.growth_interval = a.loss_scale_window;
  settings.hysteresis = a.hysteresis;
  return LossScaler(settings);
}

TrainingPlan plan_training(const TrainingArguments& arguments, int64_t rank, int64_t world,
                           const DatasetProvider& datasets) {
  TrainingPlan plan;
  plan.arguments = arguments;
  plan.config = read_model_config(arguments.model.empty() ? arguments.model_config : arguments.model);
  plan.schedule = step_schedule(schedule_request(arguments));
  check_trains(plan.schedule);
  plan.stages = stages_of(arguments, plan.config, plan.schedule);
  const RankLayout layout = layout_of(arguments, plan.schedule, world);
  const DataArguments data = data_arguments(arguments, plan.config, layout, rank);
  Datasets sets = datasets ? datasets(arguments) : Datasets{};
  const bool reads_files = !sets.train;
  plan.train_data = open_train_data(arguments, data, std::move(sets.train));
  plan.eval_data = open_eval_data(arguments, data, std::move(sets.eval));
  if (rank == 0 && reads_files) {
    plan.tokenizer_files = read_tokenizer_files(arguments.train_data, data.tokenizer);
  }
  check_enough_data(arguments, *plan.train_data);
  plan.max_steps =
      arguments.max_steps > 0 ? arguments.max_steps : steps_of_epochs(*plan.train_data, arguments.num_train_epochs);
  plan.lr = lr_arguments(arguments, plan.max_steps, plan.train_data->global_batch_size());
  resolve_lr(plan.lr);  // reports errors in these two now
  make_scaler(arguments);
  if (!arguments.resume_from_checkpoint.empty() && !resumes_from_newest(arguments)) {
    read_training_state(arguments.resume_from_checkpoint);  // reports a folder that is no checkpoint now
  }
  return plan;
}

}  // namespace concord
