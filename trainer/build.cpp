#include "trainer/build.h"

#include <fmt/core.h>

#include "core/base/config_error.h"
#include "core/optim/state_precision.h"
#include "core/schedule/step_schedule.h"
#include "platform/loader/host.h"
#include "trainer/checkpoint/resume.h"
#include "trainer/device_batch.h"
#include "trainer/parameter_groups.h"

namespace concord {
namespace {

ModelArgs model_args_of(const TrainingPlan& plan) {
  const TrainingArguments& a = plan.arguments;
  return {.dtype = a.precision.bf16   ? c10::ScalarType::BFloat16
                   : a.precision.fp16 ? c10::ScalarType::Half
                                      : c10::ScalarType::Float,
          .options = a.model_options,
          .seed = a.job.seed,
          .adapter = plan.adapter,
          .vision_tower = plan.config.vision.in_use,
          .is_reward_model = plan.config.is_reward_model,
          .adapter_folder = plan.resume_from.empty() ? plan.adapter_folder : plan.resume_from,
          .merged_adapters = plan.merged_adapters,
          .quantization_bit = a.finetuning.quantization_bit,
          .stages = plan.stages,
          .placement = placement_of(plan.schedule)};
}

VirtualModels read_model(const std::string& folder, const TrainingPlan& plan, ModelArgs args, ParallelContext& job) {
  args.share_reads = reads_together(plan.arguments, folder, job);
  return AutoModel::from_pretrained(folder, args, job);
}

VirtualModels load_or_make_model(const TrainingPlan& plan, ParallelContext& job, const Providers& providers) {
  const ModelArgs args = model_args_of(plan);
  if (!plan.resume_from.empty()) {
    if (!providers.model) {
      return read_model(plan.adapter ? plan.arguments.model.path : plan.resume_from, plan, args, job);
    }
    VirtualModels model = providers.model(plan.config, args, job);
    model.load_saved(plan.resume_from, reads_together(plan.arguments, plan.resume_from, job));
    return model;
  }
  if (providers.model) return providers.model(plan.config, args, job);
  if (plan.arguments.model.path.empty()) return AutoModel::from_config(plan.config, args, job);
  return read_model(plan.arguments.model.path, plan, args, job);
}

ParameterGroups groups_of(const TrainingPlan& plan) { return ParameterGroups(plan.arguments.groups); }

void check_fp8(const Fp8Args& fp8, const Platform& platform) {
  if (!fp8.is_on() || platform.capability(CONCORD_CAP_TORCH_FP8) != 0) return;
  throw ConfigError(fmt::format("fp8 {}: platform {} does not support FP8 ({} is 0); set fp8 to none",
                                name_of(fp8.format), platform.name(), CONCORD_CAP_TORCH_FP8));
}

// Logs the memory of 4-bit weights on this rank.
void report_quantised(VirtualModels& model, const ParallelContext& job) {
  int64_t elements = 0, bytes = 0;
  for (const Parameter* parameter : model.parameters()) {
    if (!parameter->nf4) continue;
    elements += parameter->value.numel();
    bytes += parameter->nf4->bytes();
  }
  if (elements == 0 || job.rank() != 0) return;
  loader::log(CONCORD_LOG_INFO, "train",
              fmt::format("frozen weights in 4 bits: {} elements in {} bytes, {:.4f} each", elements, bytes,
                          static_cast<double>(bytes) / static_cast<double>(elements)));
}

VirtualModels make_model(const TrainingPlan& plan, ParallelContext& job, const Providers& providers) {
  check_fp8(plan.arguments.model_options.fp8, job.platform());
  VirtualModels model = load_or_make_model(plan, job, providers);
  report_quantised(model, job);
  const ParameterGroups groups = groups_of(plan);
  for (Parameter* parameter : model.parameters()) {
    if (!groups.freezes(parameter->spec)) continue;
    parameter->frozen = true;
    parameter->value.requires_grad_(false);
  }
  return model;
}

Multipliers multipliers_of(const TrainingPlan& plan, const Providers& providers) {
  return [groups = groups_of(plan), &providers](const Parameter& parameter) {
    GroupMultipliers multipliers = default_multipliers(parameter);
    multipliers.lr *= groups.lr_multiplier(parameter.spec);
    multipliers.decoupled = groups.is_decoupled(parameter.spec);
    multipliers.weight_decay *= groups.weight_decay_multiplier(parameter.spec);
    if (providers.multipliers) {
      const GroupMultipliers given = providers.multipliers(parameter);
      multipliers.lr *= given.lr;
      multipliers.weight_decay *= given.weight_decay;
    }
    return multipliers;
  };
}

std::vector<DistributedDataParallel::Chunk> chunks_of(VirtualModels& model) {
  std::vector<DistributedDataParallel::Chunk> chunks(model.size());
  for (size_t i = 0; i < model.size(); ++i) {
    for (Parameter& parameter : model[i].parameters()) {
      if (!parameter.buffer && !parameter.frozen) chunks[i].push_back(&parameter);
    }
  }
  return chunks;
}

DataParallelOptions data_parallel_options(const TrainingArguments& a) {
  DataParallelOptions options = a.data_parallel;
  options.parameter_alignment = state_alignment(a.optimizer.precision);
  // What is validated is checked on all ranks together, after the reduction.
  options.check_for_nan_in_grad = a.precision.stops_on_not_finite() && a.faults.rerun_mode == RerunMode::disabled;
  return options;
}

// Another one, as it was at the start.
VirtualModels make_reference_model(const TrainingPlan& plan, ParallelContext& job, const Providers& providers) {
  ModelArgs args = model_args_of(plan);
  args.adapter_folder = plan.adapter_folder;
  // Such an adapter changes nothing at the start, and the weights are read as they are.
  if (args.adapter && args.adapter->modifies_base_weights()) args.adapter = std::nullopt;
  const std::string& folder = plan.arguments.preference.ref_model;
  if (!folder.empty()) {
    args.adapter = std::nullopt;
    args.adapter_folder.clear();
    args.merged_adapters.clear();
    return read_model(folder, plan, std::move(args), job);
  }
  if (providers.model) return providers.model(plan.config, args, job);
  if (plan.arguments.model.path.empty()) return AutoModel::from_config(plan.config, args, job);
  return read_model(plan.arguments.model.path, plan, std::move(args), job);
}

std::unique_ptr<PairObjective> make_objective(const TrainingPlan& plan, ParallelContext& job) {
  const PreferenceArguments& given = plan.arguments.preference;
  return given.learns_pairs() ? std::make_unique<PairObjective>(given, job) : nullptr;
}

std::unique_ptr<Reference> make_reference(const TrainingPlan& plan, ParallelContext& job, const Providers& providers,
                                          VirtualModels& trained) {
  switch (reference_of(plan)) {
    case ReferenceKind::none: return nullptr;
    case ReferenceKind::adapter_off: return std::make_unique<Reference>(plan, job, trained);
    case ReferenceKind::second_model:
      return std::make_unique<Reference>(plan, job, make_reference_model(plan, job, providers));
  }
  return nullptr;
}

std::vector<std::unique_ptr<ModelStage>> make_stages(VirtualModels& model, const ForwardStep& forward_step,
                                                     PairObjective* pairs) {
  LossStep loss_step;
  if (pairs != nullptr) {
    loss_step = [pairs](const at::Tensor& tokens, int microbatch) { return pairs->losses(tokens, microbatch); };
  }
  std::vector<std::unique_ptr<ModelStage>> stages;
  for (size_t i = 0; i < model.size(); ++i) {
    stages.push_back(std::make_unique<ModelStage>(model[i], forward_step, loss_step));
  }
  return stages;
}

std::vector<Stage*> pointers(const std::vector<std::unique_ptr<ModelStage>>& stages) {
  std::vector<Stage*> list;
  for (const auto& stage : stages) list.push_back(stage.get());
  return list;
}

// Whether the passes of two steps with equal shapes are the same kernels with the same arguments, and nothing in them
// waits for the device or for other ranks.
bool has_equal_steps(const TrainingPlan& plan, const ParallelContext& job, const Providers& providers) {
  const TrainingArguments& a = plan.arguments;
  const ModelOptions& options = a.model_options;
  const double attention = options.attention_dropout < 0 ? plan.config.attention_dropout : options.attention_dropout;
  const bool drops = attention > 0 || options.hidden_dropout > 0 || options.neftune_noise_alpha > 0 ||
                     (plan.adapter && plan.adapter->lora_dropout > 0);
  const bool reduces_meanwhile = a.data_parallel.overlap_grad_reduce || a.data_parallel.overlap_param_gather;
  const bool is_alone = job.world() == job.layout().dp() && (job.world() == 1 || !reduces_meanwhile);
  const bool waits_for_experts = plan.config.experts.num_experts > 0 && job.world() > 1;  // of other ranks
  const bool measures = a.logging.timing_level > 1 || measures_tokens(a);
  return a.pipeline.replay_steps && is_alone && !drops && !waits_for_experts && !measures && !options.offload.is_on() &&
         !a.preference.learns_pairs() && !providers.forward_step && !providers.model;
}

}  // namespace

TrainingParts::TrainingParts(const TrainingPlan& plan, ParallelContext& job, const Providers& providers)
    : model(make_model(plan, job, providers)),
      data_parallel(chunks_of(model), job, data_parallel_options(plan.arguments)),
      optimizer(data_parallel, plan.arguments.optimizer, multipliers_of(plan, providers)),
      lr(plan.lr),
      decoupled_lr(plan.decoupled_lr ? std::optional(resolve_lr(*plan.decoupled_lr)) : std::nullopt),
      scaler(make_scaler(plan.arguments)),
      loss_rule{plan.arguments.data_parallel.calculate_per_token_loss, job.layout().cp(), job.layout().dp(),
                plan.arguments.preference.learns_pairs()},
      pairs(make_objective(plan, job)),
      reference(make_reference(plan, job, providers, model)),
      stages(make_stages(model, providers.forward_step, pairs.get())),
      forward_executor(evaluation_schedule(plan.schedule, plan.schedule.pp), pointers(stages), job,
                       plan.arguments.pipeline.executor),
      timers(job, plan.arguments.logging.timing_level, plan.arguments.logging.timing_option),
      copies(job),
      graph(job.torch_device(), has_equal_steps(plan, job, providers)),
      log_token_metrics(measures_tokens(plan.arguments)),
      job_(job),
      full_batch_rows_(plan.train_data->global_batch_size()),
      schedule_(schedule_request(plan.arguments)),
      executor_options_(plan.arguments.pipeline.executor) {
  executor(schedule_.microbatches);
}

Executor& TrainingParts::executor(int64_t count) {
  std::unique_ptr<Executor>& found = executors_[count];
  if (!found) {
    ScheduleRequest request = schedule_;
    request.microbatches = count;
    found = std::make_unique<Executor>(step_schedule(request), pointers(stages), job_, executor_options_);
    found->watch([this](const Action& action, bool begins) { timers.watch(action, begins); });
  }
  return *found;
}

int64_t TrainingParts::lr_increment(int64_t rows) const {
  const int64_t increment = lr.settings().increment;
  return increment == 1 ? 1 : increment * rows / full_batch_rows_;
}

int64_t TrainingParts::counted(std::span<const MicroBatch> batches) {
  int64_t counted = 0;
  for (const MicroBatch& batch : batches) {
    counted += loss_rule.pairs ? counted_pairs(batch) : model[0].counted_tokens(batch);
  }
  // All context-parallel ranks have the loss of a pair, one of them counts it.
  return loss_rule.pairs && data_parallel.job().coordinates().cp != 0 ? 0 : counted;
}

void TrainingParts::prepare_pairs(std::span<const MicroBatch> host_batches, std::span<const MicroBatch> batches,
                                  Data data) {
  if (!pairs) return;
  pairs->begin(host_batches);
  if (data == Data::train && reference_table) {
    std::vector<at::Tensor> logps;
    for (const MicroBatch& batch : host_batches) logps.push_back(reference_table->of(batch));
    pairs->set_reference(std::move(logps));
  } else if (reference) {
    pairs->set_reference(pairs->sequence_logps(reference->token_losses(batches)));
  }
}

void TrainingParts::precompute_reference(const TrainingPlan& plan) {
  if (!plan.arguments.preference.precompute_reference || !reference) return;
  ParallelContext& job = data_parallel.job();
  reference_table = std::make_unique<ReferenceTable>(plan, job, [&](const std::vector<MicroBatch>& batches) {
    pairs->begin(batches);
    return pairs->sequence_logps(reference->token_losses(to_device(batches, job.torch_device())));
  });
  if (plan.eval_sets.empty() && !plan.test_data) reference.reset();
}

void TrainingParts::begin_evaluation(std::span<const MicroBatch> batches, const Observer& observer) {
  for (const auto& stage : stages) {
    stage->begin(batches, {}, {},
                 {.measure_tokens = log_token_metrics, .observer = stage->is_last() ? observer : Observer()});
  }
}

}  // namespace concord
