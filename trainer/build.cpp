#include "trainer/build.h"

#include "core/schedule/step_schedule.h"

namespace concord {
namespace {

ModelArgs model_args_of(const TrainingPlan& plan) {
  const TrainingArguments& a = plan.arguments;
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
          .stages = plan.stages,
          .placement = placement_of(plan.schedule)};
}

VirtualModels make_model(const TrainingPlan& plan, ParallelContext& job, const Providers& providers) {
  const ModelArgs args = model_args_of(plan);
  if (!plan.resume_from.empty()) {
    if (!providers.model) return AutoModel::from_pretrained(plan.resume_from, args, job);
    VirtualModels model = providers.model(plan.config, args, job);
    load_hf_weights(plan.resume_from, model.parameters(), shard_place(job.layout(), job.rank()));
    return model;
  }
  if (providers.model) return providers.model(plan.config, args, job);
  if (plan.arguments.model.empty()) return AutoModel::from_config(plan.config, args, job);
  return AutoModel::from_pretrained(plan.arguments.model, args, job);
}

std::vector<DistributedDataParallel::Chunk> chunks_of(VirtualModels& model) {
  std::vector<DistributedDataParallel::Chunk> chunks(model.size());
  for (size_t i = 0; i < model.size(); ++i) {
    for (Parameter& parameter : model[i].parameters()) chunks[i].push_back(&parameter);
  }
  return chunks;
}

// With fp16 a non-finite gradient means that the step is skipped; it is not an error.
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
