#include "trainer/build.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/config_error.h"
#include "core/mesh/rank_layout.h"
#include "core/pipeline/layer_layout.h"
#include "core/pipeline/step_schedule.h"

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

std::vector<StageLayers> stages_of(const TrainingArguments& a, const ModelConfig& config, const Schedule& schedule,
                                   Placement placement) {
  if (!a.pipeline_model_parallel_layout.empty()) {
    return parse_layer_layout(a.pipeline_model_parallel_layout, config.num_hidden_layers, schedule.pp);
  }
  return deal_layers({.num_layers = config.num_hidden_layers,
                      .pp = schedule.pp,
                      .vpp = schedule.vpp,
                      .account_for_embedding_in_pipeline_split = a.account_for_embedding_in_pipeline_split,
                      .account_for_loss_in_pipeline_split = a.account_for_loss_in_pipeline_split,
                      .placement = placement});
}

ModelArgs model_args_of(const TrainingArguments& a, const ModelConfig& config, const Schedule& schedule) {
  const Placement placement = placement_of(schedule);
  return {.dtype = a.bf16   ? c10::ScalarType::BFloat16
                   : a.fp16 ? c10::ScalarType::Half
                            : c10::ScalarType::Float,
          .sequence_parallel = a.sequence_parallel,
          .cp_comm_type = a.cp_comm_type,
          .recompute = {.granularity = a.recompute_granularity,
                        .method = a.recompute_method,
                        .num_layers = a.recompute_num_layers,
                        .modules = a.recompute_modules},
          .make_vocab_size_divisible_by = a.make_vocab_size_divisible_by,
          .seed = a.seed,
          .stages = stages_of(a, config, schedule, placement),
          .placement = placement};
}

int64_t longest_sample(const TrainingArguments& a, const ModelConfig& config) {
  if (a.seq_length > config.max_position_embeddings) {
    throw ConfigError(fmt::format("seq_length {} is longer than the model's max_position_embeddings {}; shorten it",
                                  a.seq_length, config.max_position_embeddings));
  }
  return a.seq_length > 0 ? a.seq_length : config.max_position_embeddings;
}

DataArguments data_arguments(const TrainingArguments& a, const ModelConfig& config, const RankLayout& layout,
                             int64_t rank) {
  const int64_t context = a.context_parallel_size > 1 ? 2 * a.context_parallel_size : 1;
  return {.path = a.train_data,
          .tokenizer = a.tokenizer,
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
    data.samples_wanted = a.max_steps * data.micro_batch_size * data.accumulation * data.dp_size;
  }
  return source ? std::make_unique<DataLoader>(data, std::move(source)) : std::make_unique<DataLoader>(data);
}

// Every sample once, in the order of the data. A pipeline is kept full by as many micro-batches as it has stages.
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

// |epochs| may have a part behind the point; packed data has another number of steps in each epoch.
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
      fmt::format("train_data '{}' has {} samples, fewer than the {} of one step (per_device_train_batch_size {} x "
                  "gradient_accumulation_steps {} x data-parallel ranks); give more data or a smaller batch",
                  a.train_data, data.samples(), data.global_batch_size(), a.per_device_train_batch_size,
                  a.gradient_accumulation_steps));
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

VirtualModels make_model(const TrainingPlan& plan, ParallelContext& job, const Providers& providers) {
  if (providers.model) return providers.model(plan.config, plan.model_args, job);
  if (plan.arguments.model.empty()) return AutoModel::from_config(plan.config, plan.model_args, job);
  return AutoModel::from_pretrained(plan.arguments.model, plan.model_args, job);
}

std::vector<DistributedDataParallel::Chunk> chunks_of(VirtualModels& model) {
  std::vector<DistributedDataParallel::Chunk> chunks(model.size());
  for (size_t i = 0; i < model.size(); ++i) {
    for (Parameter& parameter : model[i].parameters()) chunks[i].push_back(&parameter);
  }
  return chunks;
}

// With fp16 a gradient that is no number is a step to be skipped, not an error.
DataParallelOptions data_parallel_options(const TrainingArguments& a) {
  return {.use_distributed_optimizer = a.use_distributed_optimizer,
          .overlap_grad_reduce = a.overlap_grad_reduce,
          .delay_grad_reduce = a.delay_grad_reduce,
          .overlap_param_gather = a.overlap_param_gather,
          .accumulate_allreduce_grads_in_fp32 = a.accumulate_allreduce_grads_in_fp32,
          .ddp_average_in_collective = a.ddp_average_in_collective,
          .calculate_per_token_loss = a.calculate_per_token_loss,
          .check_for_nan_in_grad = a.check_for_nan_in_loss_and_grad && !a.fp16,
          .ddp_bucket_size = a.ddp_bucket_size};
}

OptimizerOptions optimizer_options(const TrainingArguments& a) {
  OptimizerOptions options;
  options.optimizer = a.optimizer;
  options.adam_beta1 = a.adam_beta1;
  options.adam_beta2 = a.adam_beta2;
  options.adam_epsilon = a.adam_epsilon;
  options.sgd_momentum = a.sgd_momentum;
  options.max_grad_norm = a.max_grad_norm;
  options.log_num_zeros_in_grad = a.log_num_zeros_in_grad;
  options.optimizer_cpu_offload = a.optimizer_cpu_offload;
  options.optimizer_offload_fraction = a.optimizer_offload_fraction;
  return options;
}

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

bool defers_weight_grads(const Schedule& schedule) {
  return std::any_of(schedule.ranks.begin(), schedule.ranks.end(), [](const std::vector<Action>& actions) {
    return std::any_of(actions.begin(), actions.end(),
                       [](const Action& action) { return action.kind == ActionKind::weight_grad; });
  });
}

std::vector<std::unique_ptr<ModelStage>> make_stages(VirtualModels& model, const ForwardStep& forward_step) {
  std::vector<std::unique_ptr<ModelStage>> stages;
  for (size_t i = 0; i < model.size(); ++i) stages.push_back(std::make_unique<ModelStage>(model[i], forward_step));
  return stages;
}

std::vector<Stage*> pointers(const std::vector<std::unique_ptr<ModelStage>>& stages) {
  std::vector<Stage*> list;
  for (const auto& stage : stages) list.push_back(stage.get());
  return list;
}

}  // namespace

TrainingPlan plan_training(const TrainingArguments& arguments, int64_t rank, int64_t world,
                           const Providers& providers) {
  TrainingPlan plan;
  plan.arguments = arguments;
  plan.config = read_model_config(arguments.model.empty() ? arguments.model_config : arguments.model);
  plan.schedule = step_schedule(schedule_request(arguments));
  plan.model_args = model_args_of(arguments, plan.config, plan.schedule);
  const RankLayout layout = layout_of(arguments, plan.schedule, world);
  const DataArguments data = data_arguments(arguments, plan.config, layout, rank);
  Datasets sets = providers.datasets ? providers.datasets(arguments) : Datasets{};
  plan.train_data = open_train_data(arguments, data, std::move(sets.train));
  plan.eval_data = open_eval_data(arguments, data, std::move(sets.eval));
  check_enough_data(arguments, *plan.train_data);
  plan.max_steps =
      arguments.max_steps > 0 ? arguments.max_steps : steps_of_epochs(*plan.train_data, arguments.num_train_epochs);
  plan.lr = lr_arguments(arguments, plan.max_steps, plan.train_data->global_batch_size());
  resolve_lr(plan.lr);  // what is wrong with it comes out now
  make_scaler(arguments);
  return plan;
}

InitializeArgs initialize_args(const TrainingPlan& plan) {
  const TrainingArguments& a = plan.arguments;
  InitializeArgs args;
  args.tensor_model_parallel_size = a.tensor_model_parallel_size;
  args.pipeline_model_parallel_size = a.pipeline_model_parallel_size;
  args.virtual_pipeline_model_parallel_size = plan.schedule.vpp;
  args.context_parallel_size = a.context_parallel_size;
  args.order = a.order;
  args.seed = a.seed;
  args.ddp_timeout = a.ddp_timeout;
  return args;
}

TrainingParts::TrainingParts(const TrainingPlan& plan, ParallelContext& job, const Providers& providers)
    : model(make_model(plan, job, providers)),
      data_parallel(chunks_of(model), job, data_parallel_options(plan.arguments)),
      optimizer(data_parallel, optimizer_options(plan.arguments)),
      lr(plan.lr),
      scaler(make_scaler(plan.arguments)),
      loss_rule{plan.arguments.calculate_per_token_loss, job.layout().cp(), job.layout().dp()},
      stages(make_stages(model, providers.forward_step)),
      validates_later(plan.arguments.enable_optimizer_post_validation && plan.schedule.pp > 1 &&
                      defers_weight_grads(plan.schedule) && !plan.arguments.fp16),
      executor(plan.schedule, pointers(stages), job, {.variable_seq_lengths = plan.arguments.variable_seq_lengths}),
      forward_executor(evaluation_schedule(plan.schedule, plan.schedule.pp), pointers(stages), job,
                       {.variable_seq_lengths = plan.arguments.variable_seq_lengths}) {}

void TrainingParts::begin(std::span<const MicroBatch> batches, std::vector<double> weights) {
  for (double& weight : weights) weight *= loss_scale();
  for (const auto& stage : stages) stage->begin(batches, weights);
}

int64_t TrainingParts::counted_tokens(std::span<const MicroBatch> batches) {
  int64_t counted = 0;
  for (const MicroBatch& batch : batches) counted += model[0].counted_tokens(batch);
  return counted;
}

void TrainingParts::begin_evaluation(std::span<const MicroBatch> batches) {
  for (const auto& stage : stages) stage->begin(batches);
}

}  // namespace concord
