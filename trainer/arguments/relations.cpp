// Relations between the settings of a run, and all relations together.
#include "trainer/arguments/relations.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/base/quoted.h"
#include "core/base/refused_combinations.h"
#include "core/mesh/platform_map.h"
#include "core/optim/state_precision.h"
#include "core/schedule/step_schedule.h"
#include "trainer/data/batch_division.h"

namespace concord {
namespace {

void check_profile(const TrainingArguments& a, Problems* problems) {
  const LoggingArguments& given = a.logging;
  if (given.profile && given.profile_step_start >= given.profile_step_end) {
    problems->add(fmt::format("profile_step_start {} is not before profile_step_end {}", given.profile_step_start,
                              given.profile_step_end));
  }
}

void check_metric(const TrainingArguments& a, Problems* problems) {
  std::vector<std::string> known = {"", "loss", "perplexity"};
  if (a.evaluation.accuracy) known.emplace_back("accuracy");
  for (const auto& [name, path] : a.evaluation.sets) {
    for (const char* kind : {"_loss", "_perplexity"}) known.push_back(name + kind);
    if (a.evaluation.accuracy) known.push_back(name + "_accuracy");
  }
  std::string metric = a.best_model.metric;
  if (metric.starts_with("eval_")) metric.erase(0, 5);
  if (std::find(known.begin(), known.end(), metric) != known.end()) return;
  known.erase(known.begin());
  problems->add(fmt::format("metric_for_best_model is {}, but must be one of: {}", quoted(a.best_model.metric),
                            fmt::join(known, ", ")));
}

// The rules of HF, so that a checkpoint belongs to every best evaluation. Shares of all steps are compared in
// millionths.
void check_best_model(const TrainingArguments& a, Problems* problems) {
  check_metric(a, problems);
  if (a.best_model.patience > 0 && a.evaluation.strategy == IntervalStrategy::no) {
    problems->add("early_stopping_patience counts evaluations, but there are none; set eval_data and eval_strategy");
  }
  if (a.best_model.patience == 0 && a.best_model.threshold > 0) {
    problems->add("early_stopping_threshold is used with early_stopping_patience only; set that too");
  }
  if (!a.best_model.load_at_end) return;
  if (a.evaluation.strategy != a.saving.strategy || a.saving.strategy == IntervalStrategy::no) {
    problems->add(fmt::format(
        "load_best_model_at_end requires eval_strategy and save_strategy to be the same, steps or epoch, but they are "
        "{} and {}{}",
        name_of(a.evaluation.strategy), name_of(a.saving.strategy), !evaluates(a) ? ", and eval_data is not set" : ""));
    return;
  }
  if (a.saving.strategy != IntervalStrategy::steps) return;
  const double eval = eval_steps(a), save = a.saving.steps;
  const bool same_kind = (eval < 1) == (save < 1);
  const double scale = eval < 1 ? 1e6 : 1;
  if (same_kind && std::fmod(std::round(save * scale), std::round(eval * scale)) == 0) return;
  problems->add(
      fmt::format("load_best_model_at_end requires save_steps to be a multiple of eval_steps, but they are {:g} and "
                  "{:g}{}",
                  save, eval, same_kind ? "" : ", a number and a share of all steps"));
}

void check_reports(const TrainingArguments& a, Problems* problems) {
  const auto has = [&](ReportTarget target) {
    return std::find(a.report.to.begin(), a.report.to.end(), target) != a.report.to.end();
  };
  if (has(ReportTarget::none) && a.report.to.size() > 1)
    problems->add("report_to lists none together with other names; give none alone, or only the others");
  if (has(ReportTarget::prometheus) && a.report.prometheus_port == 0)
    problems->add("report_to has prometheus, but no port to listen at; give prometheus_port, as in 9400");
  if (!has(ReportTarget::prometheus) && a.report.prometheus_port != 0)
    problems->add("prometheus_port is given, but report_to does not name prometheus; add it");
}

void check_finetune(const TrainingArguments& a, Problems* problems) {
  if (!a.resume.finetune || !resumes_from_newest(a)) return;
  problems->add(
      fmt::format("finetune starts a new run in output_dir, but resume_from_checkpoint: {} is the newest checkpoint of "
                  "that same folder; name the checkpoint's folder, and choose another output_dir",
                  a.saving.resume_from));
}

void check_data_parallelism(const TrainingArguments& a, Problems* problems) {
  if (a.data_parallel.overlap_param_gather && !a.data_parallel.use_distributed_optimizer) {
    problems->add(
        "overlap_param_gather requires use_distributed_optimizer: true; without it every rank already has all weights");
  }
  if (a.data_parallel.overlap_param_gather && !a.data_parallel.overlap_grad_reduce) {
    problems->add("overlap_param_gather requires overlap_grad_reduce: true");
  }
}

void check_offloading(const TrainingArguments& a, Problems* problems) {
  const ModelOptions& options = a.model_options;
  if (!options.offload.is_on() || options.recompute.granularity == RecomputeGranularity::full) return;
  problems->add(
      fmt::format("cpu_offloading moves the inputs of recomputed layers, but recompute_granularity is {}; set "
                  "recompute_granularity: full, or remove cpu_offloading and cpu_offloading_num_layers",
                  quoted(name_of(options.recompute.granularity))));
}

void check_tiles(const TrainingArguments& a, Problems* problems) {
  const ModelOptions& options = a.model_options;
  if (!options.tiled_mlp) {
    if (options.tiled_mlp_num_shards > 0) {
      problems->add(
          fmt::format("tiled_mlp_num_shards is {}, but is used with tiled_mlp only; remove it or set tiled_mlp: "
                      "true",
                      options.tiled_mlp_num_shards));
    }
    return;
  }
  if (options.tiled_mlp_num_shards == 0 && a.data.seq_length == 0 && a.data.cutoff_len == 0) {
    problems->add(
        "tiled_mlp needs the tokens of a row for the number of tiles; set tiled_mlp_num_shards, or seq_length");
  }
  if (options.fp8.is_on()) problems->add(refusal_message(Refused::tiled_mlp_with_fp8));
  if (a.precision.main_grads_dtype == MainGradsType::bf16) {
    problems->add(refusal_message(Refused::tiled_mlp_with_bf16_grads));
  }
  const auto recomputes = [&](RecomputeModule module) {
    return options.recompute.granularity == RecomputeGranularity::selective &&
           std::ranges::find(options.recompute.modules, module) != options.recompute.modules.end();
  };
  if (recomputes(RecomputeModule::mlp) || recomputes(RecomputeModule::mlp_act)) {
    problems->add(refusal_message(Refused::tiled_mlp_with_recomputed_mlp));
  }
}

void check_recovery(const TrainingArguments& a, Problems* problems) {
  if (a.recovery.max_restarts > 0) return;
  if (a.recovery.spares > 0) {
    problems->add(
        fmt::format("spares is {}, but without max_restarts nothing is started again after a failure; set max_restarts",
                    a.recovery.spares));
  }
  if (a.report.straggler_action == StragglerAction::replace) {
    problems->add("straggler_action: replace starts the ranks again, which needs max_restarts; set it, or use warn");
  }
}

// Every replica needs a schedule for its number of micro-batches.
void check_split(const TrainingArguments& a, int64_t world, Problems* problems) {
  const std::string& split = a.steps.heterogeneous_split;
  if (split.empty()) return;
  if (a.preference.learns_pairs()) {
    problems->add(
        "heterogeneous_split is for stages pt and sft: metrics of pairs are means over replicas with the same number "
        "of "
        "them; remove it");
  }
  if (a.job.expert_model_parallel_size > 1) {
    problems->add(
        fmt::format("heterogeneous_split needs expert_model_parallel_size 1, but it is {}: replicas exchange tokens in "
                    "every micro-batch, so they need the same number of them",
                    a.job.expert_model_parallel_size));
  }
  if (a.model_options.moe.router_load_balancing_type == Balancing::global_aux) {
    problems->add(
        "heterogeneous_split cannot be used with moe_router_load_balancing_type global_aux_loss: replicas add up their "
        "counts in every micro-batch, so they need the same number of them; use aux_loss or seq_aux_loss");
  }
  if (!a.data_parallel.calculate_per_token_loss) {
    problems->add(
        "heterogeneous_split needs calculate_per_token_loss: true: in a mean over micro-batches and replicas, tokens "
        "of "
        "a replica with fewer micro-batches would weigh more");
  }
  if (a.pipeline.schedule.ends_with(".csv")) {
    problems->add(fmt::format(
        "heterogeneous_split needs schedules for several numbers of micro-batches, but pipeline_schedule {} "
        "is for one; use a kind from `concord schedule`",
        quoted(a.pipeline.schedule)));
    return;
  }
  const std::optional<int64_t> replicas = world > 0 ? data_parallel_size(a, world) : std::nullopt;
  if (!replicas) return;
  problems->collect([&] {
    std::vector<double> speeds = given_speeds(a, *replicas);
    if (speeds.empty()) speeds.assign(static_cast<size_t>(*replicas), 1);
    ScheduleRequest request = schedule_request(a);
    for (const int64_t count : divide_by_speed(a.data.accumulation * *replicas, speeds, micro_batch_unit(a))) {
      request.microbatches = count;
      step_schedule(request);
    }
  });
}

// Sizes that do not divide the world size are rejected by the layout.
void check_batch(const TrainingArguments& a, int64_t world, Problems* problems) {
  const std::optional<int64_t> ranks = data_parallel_size(a, world);
  if (a.steps.global_batch_size <= 0 || world <= 0 || !ranks) return;
  const std::optional<int64_t> accumulation = accumulation_of(a, *ranks);
  const int64_t micro = std::max<int64_t>(1, a.data.micro_batch_size);
  if (!accumulation) {
    problems->add(
        fmt::format("global_batch_size {} is not divisible by per_device_train_batch_size {} x {} data-parallel ranks",
                    a.steps.global_batch_size, micro, *ranks));
  } else if (*accumulation != a.data.accumulation) {
    problems->add(
        fmt::format("global_batch_size {} is not per_device_train_batch_size {} x gradient_accumulation_steps {} x {} "
                    "data-parallel ranks; remove gradient_accumulation_steps (it would be {})",
                    a.steps.global_batch_size, micro, a.data.accumulation, *ranks, *accumulation));
  }
}

// A step without a backward pass updates no weights; evaluation has its own schedule.
void check_trains(const Schedule& schedule) {
  if (!is_forward_only(schedule)) return;
  throw ConfigError(
      fmt::format("pipeline_schedule '{}' has no backward pass, so nothing would be trained; choose another kind "
                  "(`concord schedule --help` lists them)",
                  schedule.kind));
}

void check_layout(const TrainingArguments& a, int64_t world, Problems* problems) {
  if (a.job.virtual_pipeline_model_parallel_size > 1 && a.job.pipeline_model_parallel_size == 1) {
    problems->add(fmt::format("virtual_pipeline_model_parallel_size {} requires pipeline_model_parallel_size >= 2",
                              a.job.virtual_pipeline_model_parallel_size));
    return;
  }
  const int64_t tensor = a.job.tensor_model_parallel_size, pipeline = a.job.pipeline_model_parallel_size;
  const int64_t of_an_expert = a.job.expert_tensor_parallel_size == 0 ? tensor : a.job.expert_tensor_parallel_size;
  if (tensor > 1 && of_an_expert != tensor && !a.model_options.sequence_parallel) {
    problems->add(fmt::format(
        "expert_tensor_parallel_size {} differs from tensor_model_parallel_size {}, which requires sequence_parallel: "
        "true",
        of_an_expert, tensor));
  }
  // If the number of processes is not known yet, the smallest possible one.
  const int64_t smallest = std::lcm(tensor * a.job.context_parallel_size * pipeline,
                                    of_an_expert * a.job.expert_model_parallel_size * pipeline);
  problems->collect([&] {
    const RankLayout layout = layout_of(a.job, world > 0 ? world : smallest);
    if (world > 0) check_platforms(layout, PlatformMap::parse(a.job.platform, world));
  });
  const bool has_microbatches = world > 0 || a.steps.global_batch_size <= 0;
  if (!has_microbatches) return;
  problems->collect([&] {
    check_trains(step_schedule(schedule_request(a)));
    check_ramp_schedules(a, world);
  });
}

}  // namespace

std::vector<double> given_speeds(const TrainingArguments& a, int64_t replicas) {
  const std::string& split = a.steps.heterogeneous_split;
  return split.empty() || split == kAutomaticSplit ? std::vector<double>() : parse_replica_speeds(split, replicas);
}

// Interleaved schedules take micro-batches in groups of the pipeline's size.
int64_t micro_batch_unit(const TrainingArguments& a) {
  return a.job.virtual_pipeline_model_parallel_size > 1 ? a.job.pipeline_model_parallel_size : 1;
}

void check_ramp_schedules(const TrainingArguments& a, int64_t world) {
  const std::optional<BatchRamp> ramp = batch_ramp(a.steps);
  const std::optional<int64_t> replicas = world > 0 ? data_parallel_size(a, world) : std::nullopt;
  if (!ramp || !replicas) return;
  const int64_t together = std::max<int64_t>(1, a.data.micro_batch_size * *replicas);
  if (ramp->increment < together || ramp->start < together) return;  // the loader rejects it
  ScheduleRequest request = schedule_request(a);
  for (int64_t rows = ramp->start; rows < a.data.accumulation * together; rows += ramp->increment) {
    request.microbatches = rows / together;
    step_schedule(request);
  }
}

void check_arguments(const TrainingArguments& given, int64_t world) {
  check_values(given);
  const TrainingArguments a = resolve_arguments(given, world);
  Problems problems;
  check_batch(a, world, &problems);
  check_data_relations(a, &problems);
  check_objective_relations(a, &problems);
  check_profile(a, &problems);
  check_best_model(a, &problems);
  check_reports(a, &problems);
  check_finetune(a, &problems);
  check_data_parallelism(a, &problems);
  check_offloading(a, &problems);
  check_tiles(a, &problems);
  check_recovery(a, &problems);
  check_split(a, world, &problems);
  problems.collect([&] { check_state_precision(a.optimizer); });
  check_layout(a, world, &problems);
  problems.throw_if_any("configuration errors");
}

}  // namespace concord
