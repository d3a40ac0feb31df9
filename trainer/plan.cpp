#include "trainer/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/config_error.h"
#include "core/mesh/initialize_args.h"
#include "core/models/parameter_plan.h"
#include "core/schedule/step_schedule.h"
#include "trainer/arguments/relations.h"
#include "trainer/checkpoint/output_folder.h"
#include "trainer/checkpoint/resume_check.h"
#include "trainer/checkpoint/training_state.h"
#include "trainer/parameter_groups.h"
#include "trainer/planning/plan_adapter.h"
#include "trainer/planning/plan_data.h"
#include "trainer/planning/plan_steps.h"

namespace concord {
namespace {

std::vector<StageLayers> stages_of(const TrainingArguments& a, const ModelConfig& config, const Schedule& schedule) {
  if (!a.pipeline.layout.empty()) {
    return parse_layer_layout(a.pipeline.layout, config.num_hidden_layers, schedule.pp, a.model_options.mtp.num_layers);
  }
  LayerAssignment deal = a.pipeline.deal;
  deal.num_layers = config.num_hidden_layers;
  deal.pp = schedule.pp;
  deal.vpp = schedule.vpp;
  deal.placement = placement_of(schedule);
  return assign_layers(deal);
}

ModelConfig model_config_of(const TrainingArguments& a) {
  const std::string& path = a.model.path.empty() ? a.model.config : a.model.path;
  ModelConfig config = read_model_config(path);
  if (a.preference.stage == TrainingStage::rm) return reward_model_config(config);
  if (!config.is_reward_model) return config;
  throw ConfigError(
      fmt::format("{} is a reward model ({}), which predicts no tokens; set stage: rm to continue training it", path,
                  config.architecture));
}

// Its layers may be others, but not the tokens that both read.
void check_reference(const std::string& folder, const ModelConfig& config) {
  if (has_adapter(folder)) {
    throw ConfigError(
        fmt::format("ref_model {} holds an adapter; merge it into its base model with `concord merge`", folder));
  }
  const int64_t vocabulary = read_model_config(folder).vocab_size;
  if (vocabulary == config.vocab_size) return;
  throw ConfigError(
      fmt::format("ref_model {} has a vocabulary of {}, but the model has {}; use a reference with the "
                  "same tokenizer",
                  folder, vocabulary, config.vocab_size));
}

void freeze(TrainingPlan* plan, const std::string& pattern) {
  std::vector<std::string>& patterns = plan->arguments.groups.freeze;
  if (std::ranges::find(patterns, pattern) == patterns.end()) patterns.push_back(pattern);
}

void check_groups(const TrainingPlan& plan) {
  if (plan.arguments.groups == GroupArguments{}) return;
  const ParameterGroups groups(plan.arguments.groups);
  const auto adapter = plan.adapter ? std::optional<AdapterModules>(*plan.adapter) : std::nullopt;
  groups.check(plan.config, plan.stages, adapter ? &*adapter : nullptr);
}

// Reports now what resuming would report later. A restarted attempt has checkpoints of its own, and the one that was
// named may be gone.
void check_resumption(const TrainingPlan& plan) {
  const TrainingArguments& a = plan.arguments;
  std::string folder = a.saving.resume_from;
  if (resumes_from_newest(a)) {
    const std::optional<int64_t> newest = newest_resumable_step(a.output.dir);
    folder = newest ? checkpoint_folder(a.output.dir, *newest).string() : "";
  }
  if (folder.empty()) return;
  const ResumeParts parts = resume_parts(a);
  if (!parts.progress) return check_same_model(folder, plan);
  check_resumable(folder, read_training_state(folder), plan, parts);
}

}  // namespace

ResumeParts resume_parts(const TrainingArguments& a) {
  if (a.resume.finetune) return {.progress = false, .optimizer = false, .schedule = false, .rng = false, .data = false};
  return {.progress = true,
          .optimizer = !a.resume.no_load_optim,
          .schedule = !a.resume.override_opt_param_scheduler,
          .rng = !a.resume.no_load_rng,
          .data = !a.resume.ignore_data_skip};
}

void check_machines(const TrainingPlan& plan, const Machines& machines) {
  const TrainingArguments& a = plan.arguments;
  if (!a.saving.on_each_node || a.saving.strategy == IntervalStrategy::no) return;
  check_machines_are_whole(layout_of(initialize_args(plan), machines.world), machines,
                           a.data_parallel.use_distributed_optimizer && !a.saving.only_model);
}

ReferenceKind reference_of(const TrainingPlan& plan) {
  const PreferenceArguments& given = plan.arguments.preference;
  if (!given.uses_reference()) return ReferenceKind::none;
  const bool starts_as_base = plan.adapter && plan.adapter_folder.empty() && plan.adapter->modules_to_save.empty() &&
                              !plan.adapter->modifies_base_weights();
  return given.ref_model.empty() && starts_as_base ? ReferenceKind::adapter_off : ReferenceKind::second_model;
}

InitializeArgs initialize_args(const TrainingPlan& plan) {
  InitializeArgs args = plan.arguments.job;
  args.virtual_pipeline_model_parallel_size = plan.schedule.vpp;
  return args;
}

std::optional<LossScaler> make_scaler(const TrainingArguments& a) {
  if (!a.precision.fp16) return std::nullopt;
  return LossScaler(a.loss_scaler);
}

TrainingPlan plan_model(const TrainingArguments& arguments) {
  TrainingPlan plan;
  plan.arguments = arguments;
  plan_adapter(&plan);
  plan.config = model_config_of(plan.arguments);
  ModelOptions& model = plan.arguments.model_options;
  if (model.tiled_mlp && model.tiled_mlp_num_shards == 0) {
    const int64_t given = arguments.data.seq_length > 0 ? arguments.data.seq_length : arguments.data.cutoff_len;
    model.tiled_mlp_num_shards = (given + plan.config.hidden_size - 1) / plan.config.hidden_size;
  }
  if (plan.arguments.finetuning.type == FinetuningType::freeze) {
    freeze(&plan, frozen_pattern(plan.arguments.finetuning, plan.config.num_hidden_layers));
  }
  if (plan.adapter) plan.adapter = adapter_for(plan.config, *plan.adapter);
  plan.schedule = step_schedule(schedule_request(arguments));
  plan.stages = stages_of(arguments, plan.config, plan.schedule);
  return plan;
}

TrainingPlan plan_training(const TrainingArguments& arguments, int64_t rank, int64_t world,
                           const DatasetProvider& datasets) {
  TrainingPlan plan = plan_model(arguments);
  if (!arguments.preference.ref_model.empty()) check_reference(arguments.preference.ref_model, plan.config);
  const RankLayout layout = layout_of(initialize_args(plan), world);
  plan_data(&plan, layout, rank, datasets ? datasets(arguments) : Datasets{});
  if (plan.config.vision.in_use) {
    for (const std::string& pattern : frozen_parts(arguments.finetuning)) freeze(&plan, pattern);
  }
  check_groups(plan);
  if (!arguments.evaluation.sample_prompts.empty()) {
    plan.sample_prompts = read_prompts(arguments.evaluation.sample_prompts, /*chat=*/false);
  }
  plan_steps(&plan);
  make_scaler(arguments);  // reports errors in its arguments now
  if (!is_restarted_attempt()) check_resumption(plan);
  return plan;
}

}  // namespace concord
