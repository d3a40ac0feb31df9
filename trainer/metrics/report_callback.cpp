#include "trainer/metrics/report_callback.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/mesh/job_environment.h"
#include "core/models/parameter_plan.h"
#include "trainer/arguments/table.h"
#include "trainer/parameter_groups.h"
#include "trainer/report/files.h"
#include "trainer/report/trainer_state.h"
#include "trainer/trackers/trackers.h"

namespace concord {
namespace {

NamedTexts layout_texts(ParallelContext& job, const TrainingPlan& plan) {
  const RankLayout& layout = job.layout();
  const PlatformMap& platforms = job.platforms();
  return {{"device", job.torch_device().str()},
          {"platform", platforms.is_mixed() ? platforms.to_string() : std::string(job.platform().name())},
          {"processes", std::to_string(layout.world())},
          {"data parallel", std::to_string(layout.dp())},
          {"tensor parallel", std::to_string(layout.tp())},
          {"pipeline parallel", std::to_string(layout.pp())},
          {"context parallel", std::to_string(layout.cp())},
          {"expert parallel", std::to_string(layout.ep())},
          {"expert tensor parallel", std::to_string(layout.etp())},
          {"schedule", plan.schedule.kind}};
}

int64_t longest_sample(const TrainingPlan& plan) {
  const DataArguments& data = plan.arguments.data;
  if (data.seq_length > 0) return data.seq_length;
  return data.cutoff_len > 0 ? data.cutoff_len : plan.config.max_position_embeddings;
}

std::string model_text(const TrainingPlan& plan) {
  const TrainingArguments& a = plan.arguments;
  return fmt::format(
      "{}, {} parameters, in {}, {}", plan.config.architecture,
      count_text(static_cast<double>(parameter_count(plan.config))),
      a.precision.bf16   ? "bf16"
      : a.precision.fp16 ? "fp16"
                         : "fp32",
      a.model.path.empty() ? "initialized from seed " + std::to_string(a.job.seed) : "from " + a.model.path);
}

std::string devices_text(ParallelContext& job) {
  const RankLayout& layout = job.layout();
  const PlatformMap& platforms = job.platforms();
  const std::string devices = platforms.is_mixed() ? platforms.to_string()
                                                   : fmt::format("{} x {} ({})", layout.world(), job.platform().name(),
                                                                 job.device().info().name);
  return fmt::format("{}: data parallel {} x tensor {} x pipeline {} x context {}", devices, layout.dp(), layout.tp(),
                     layout.pp(), layout.cp());
}

std::string batch_text(const TrainingPlan& plan, const ParallelContext& job) {
  const TrainingArguments& a = plan.arguments;
  return fmt::format("{} {} per step: {} per micro-batch x {} accumulated x {} data parallel",
                     plan.train_data->global_batch_size(), a.data.packing ? "rows" : "samples", a.data.micro_batch_size,
                     a.data.accumulation, job.layout().dp());
}

std::string steps_text(const TrainingPlan& plan) {
  const auto steps = static_cast<double>(plan.max_steps);
  const auto batch = static_cast<double>(plan.train_data->global_batch_size());
  return fmt::format("{} ({:.3g} epochs), up to {} tokens, {} per sample", plan.max_steps,
                     steps / static_cast<double>(plan.train_data->batches(0)),
                     count_text(steps * batch * static_cast<double>(longest_sample(plan))), longest_sample(plan));
}

std::string evaluation_times(const TrainingPlan& plan, int64_t eval_steps) {
  const EvaluationArguments& given = plan.arguments.evaluation;
  const bool counts_epochs = given.strategy == IntervalStrategy::epoch;
  const std::string delay =
      given.delay > 0 ? fmt::format(" from {} {:g} on", counts_epochs ? "epoch" : "step", given.delay) : "";
  if (counts_epochs) return "after every epoch" + delay + " and at the end";
  if (eval_steps > plan.max_steps)
    return fmt::format("at the end: eval_steps {} is greater than the number of steps", eval_steps);
  return fmt::format("every {} steps{} and at the end", eval_steps, delay);
}

std::string evaluation_text(const TrainingPlan& plan, int64_t eval_steps) {
  const EvaluationArguments& given = plan.arguments.evaluation;
  const std::string start = given.on_start ? "before the first step" : "";
  if (given.strategy != IntervalStrategy::no) {
    return start + (given.on_start ? ", " : "") + evaluation_times(plan, eval_steps);
  }
  return given.on_start ? start + " only: eval_strategy is no" : "never: eval_strategy is no, so eval_data is not used";
}

std::string saving_text(const TrainingPlan& plan, int64_t save_steps) {
  const TrainingArguments& a = plan.arguments;
  const char* const where = plan.writers ? ", on each machine" : "";
  if (a.saving.strategy == IntervalStrategy::no)
    return "nothing: save_strategy is no, so the trained model is not saved";
  if (a.saving.strategy == IntervalStrategy::epoch)
    return fmt::format("a checkpoint after every epoch and at the end{}", where);
  return fmt::format("a checkpoint every {} steps and at the end{}", save_steps, where);
}

const std::string* tokenizer_json(const TokenizerFiles& files) {
  const auto found =
      std::find_if(files.begin(), files.end(), [](const auto& file) { return file.first == "tokenizer.json"; });
  return found == files.end() ? nullptr : &found->second;
}

// The tokenizer that is saved with the model.
std::string tokenizer_text(const TrainingPlan& plan) {
  const std::string& model = plan.arguments.model.path;
  const TokenizerFiles own = model.empty() ? TokenizerFiles{} : tokenizer_files(model);
  if (own.empty()) return plan.tokenizer_files.empty() ? "unknown, so none is saved with the model" : "from the data";
  const std::string *models = tokenizer_json(own), *datas = tokenizer_json(plan.tokenizer_files);
  const bool differ = models != nullptr && datas != nullptr && *models != *datas;
  return differ ? "from the model, but the data was built with a different one" : "from the model";
}

// Returns the parts that a resumed run does not take from the checkpoint.
std::string not_resumed(const ResumeParts& parts) {
  std::string text;
  if (!parts.optimizer) text += "; with fresh optimizer state";
  if (!parts.rng) text += "; with fresh random generators";
  if (!parts.data) text += "; from the beginning of the data";
  return text;
}

int64_t trained_parameters(const TrainingPlan& plan) {
  if (plan.adapter) return adapter_parameters(plan.config, *plan.adapter);
  return parameter_count(plan.config) - ParameterGroups(plan.arguments.groups).frozen_parameters(plan.config);
}

std::string trained_text(const TrainingPlan& plan) {
  const int64_t all = parameter_count(plan.config), trained = trained_parameters(plan);
  if (!plan.adapter && !plan.config.unused_tensors.empty()) {
    return fmt::format("all weights; tensors of its files that begin with {} are not trained",
                       fmt::join(plan.config.unused_tensors, " or "));
  }
  if (!plan.adapter && trained == all) return "all weights";
  return fmt::format("{}: {} parameters, {:.3g} % of the model's {}",
                     plan.adapter ? fmt::format("an adapter of rank {}", plan.adapter->r) : "what is not frozen",
                     trained, 100.0 * static_cast<double>(trained) / static_cast<double>(all), all);
}

std::string preference_text(const TrainingPlan& plan) {
  const PreferenceArguments& given = plan.arguments.preference;
  if (given.stage == TrainingStage::rm) return "a reward model, from pairs";
  const char* const reference = reference_of(plan) == ReferenceKind::none ? "without a reference"
                                : reference_of(plan) == ReferenceKind::adapter_off
                                    ? "against the model without the adapter"
                                : given.ref_model.empty() ? "against the model at the start"
                                                          : "against ";
  return fmt::format("preferences of pairs: {}, beta {:g}, {}{}", name_of(given.loss), given.beta, reference,
                     given.ref_model);
}

std::string data_text(const TrainingPlan& plan) {
  const DataArguments& data = plan.data;
  const std::string cut = plan.train_data->source().cut_text();
  const std::string path = data.blend.empty() ? data.path : "a blend of " + plan.train_data->source().name();
  return fmt::format("{}: {} {}{}", path.empty() ? "generated by the program" : path, plan.train_data->samples(),
                     plan.arguments.preference.learns_pairs() ? "pairs" : "samples", cut.empty() ? "" : "; " + cut);
}

// Returns the summary that is printed before training.
NamedTexts opening(const TrainingPlan& plan, ParallelContext& job, const RunDescription& run) {
  const TrainingArguments& a = plan.arguments;
  NamedTexts rows = {{"model", model_text(plan)},    {"trains", trained_text(plan)},
                     {"data", data_text(plan)},      {"tokenizer", tokenizer_text(plan)},
                     {"devices", devices_text(job)}, {"batch", batch_text(plan, job)},
                     {"steps", steps_text(plan)}};
  if (a.preference.learns_pairs()) rows.insert(rows.begin() + 2, {"learns", preference_text(plan)});
  if (!plan.eval_sets.empty()) rows.emplace_back("evaluates", evaluation_text(plan, run.eval_steps));
  if (plan.test_data) rows.emplace_back("tests", "at the end, on " + plan.test_data->source().name());
  rows.emplace_back("saves", saving_text(plan, run.save_steps));
  if (plan.continues()) {
    rows.emplace_back("resumes", fmt::format("{}, after step {}{}", plan.resume_from, run.first_step,
                                             not_resumed(plan.resume_parts)));
  } else if (!plan.resume_from.empty()) {
    rows.emplace_back("finetunes", plan.resume_from + ", from its weights");
  }
  rows.emplace_back("files", fmt::format("in {}{}", a.output.dir, plan.writers ? " of each machine" : ""));
  return rows;
}

TransformerShape shape_of(const ModelConfig& config, int64_t seq_length) {
  TransformerShape shape;
  shape.num_layers = config.num_hidden_layers;
  shape.hidden_size = config.hidden_size;
  shape.intermediate_size = config.intermediate_size;
  shape.num_attention_heads = config.num_attention_heads;
  shape.num_key_value_heads = config.num_key_value_heads;
  shape.head_dim = config.head_dim;
  shape.q_lora_rank = config.latent.q_lora_rank;
  shape.kv_lora_rank = config.latent.kv_lora_rank;
  shape.qk_rope_head_dim = config.latent.qk_rope_head_dim;
  shape.v_head_dim = config.latent.v_head_dim;
  shape.num_linear_layers = config.delta.count();
  shape.linear_key_heads = config.delta.key_heads;
  shape.linear_value_heads = config.delta.value_heads;
  shape.linear_key_dim = config.delta.key_dim;
  shape.linear_value_dim = config.delta.value_dim;
  shape.linear_conv_taps = config.delta.taps;
  shape.attention_gate = config.attention_gate;
  shape.vocab_size = config.vocab_size;
  shape.seq_length = seq_length;
  shape.num_moe_layers = config.experts.layers();
  shape.moe_intermediate_size = config.experts.intermediate_size;
  shape.experts_per_token = config.experts.num_experts_per_tok;
  shape.shared_expert_intermediate_size = config.experts.shared_intermediate_size;
  return shape;
}

TowerShape tower_shape_of(const TrainingPlan& plan) {
  const VisionConfig& vision = plan.config.vision;
  if (!vision.in_use) return {};
  const FinetuningArguments& given = plan.arguments.finetuning;
  const bool has_windows = vision.window_size > 0;
  const int64_t side = has_windows ? vision.window_side() * vision.tokens.merge : 0;
  return {.depth = vision.depth,
          .full_blocks = has_windows ? std::ssize(vision.full_blocks) : vision.depth,
          .window = side * side,
          .hidden_size = vision.hidden_size,
          .intermediate_size = vision.intermediate_size,
          .gated = vision.kind == TowerKind::qwen2_5,
          .pixels = vision.pixels(),
          .merged_patches = vision.tokens.merge * vision.tokens.merge,
          .mergers = 1 + std::ssize(vision.deepstack),
          .out_size = plan.config.hidden_size,
          .frozen = plan.adapter || given.freeze_vision_tower,
          .merger_frozen = plan.adapter || given.freeze_multi_modal_projector};
}

double peak_flops(const TrainingArguments& a, const ParallelContext& job) {
  if (a.report.peak_flops > 0) return a.report.peak_flops;
  return job.device().peak_flops(a.precision.bf16 ? DType::kBF16 : a.precision.fp16 ? DType::kF16 : DType::kF32);
}

RunDescription describe(const TrainingPlan& plan, ParallelContext& job, int64_t first_step, int terminal) {
  const TrainingArguments& a = plan.arguments;
  RunDescription run;
  run.output_dir = a.output.dir;
  run.title = "Training " + plan.config.architecture;
  run.run_name = a.report.run_name.empty() ? a.output.dir : a.report.run_name;
  run.max_steps = plan.max_steps;
  run.num_train_epochs = a.steps.num_train_epochs;
  run.logging_steps = logging_steps(a.logging, plan.max_steps);
  run.first_step = first_step;
  run.save_steps = steps_of(a.saving.steps, plan.max_steps);
  run.eval_steps = steps_of(eval_steps(a), plan.max_steps);
  run.train_batch_size = a.data.micro_batch_size;
  run.world_size = job.world();
  run.configuration = printed_arguments(a);
  run.changed = changed_arguments(a, job.world());
  run.parameters = parameter_count(plan.config);
  run.trained_parameters = trained_parameters(plan);
  run.layout = layout_texts(job, plan);
  if (a.report.loss_floor > 0) run.loss_floor = a.report.loss_floor;
  if (plan.config.module.empty()) {
    run.shape = shape_of(plan.config, longest_sample(plan));
    run.shape->frozen = plan.adapter.has_value();
  }
  run.tower = tower_shape_of(plan);
  run.peak_flops = peak_flops(a, job);
  // mpirun gives its processes a pseudo-terminal, wherever its output goes.
  const bool is_terminal_unknown = read_job_environment().source == JobSource::openmpi;
  run.progress = a.report.disable_tqdm || is_terminal_unknown ? ProgressMode::plain : ProgressMode::automatic;
  run.tensorboard = reports_to(a.report, ReportTarget::tensorboard);
  run.html = reports_to(a.report, ReportTarget::html);
  if (job.rank() != 0) run.progress = ProgressMode::none;  // only the first machine shows it
  run.terminal = terminal;
  run.opening = opening(plan, job, run);
  return run;
}

}  // namespace

ReportCallback::ReportCallback(const TrainingPlan& plan, ParallelContext& job, int64_t first_step, int terminal,
                               std::vector<std::string> notes, std::vector<std::unique_ptr<Tracker>> trackers)
    : report_(describe(plan, job, first_step, terminal), std::move(trackers)), notes_(std::move(notes)) {
  const std::string_view why_slow = job.platform().capability_note(CONCORD_CAP_TORCH_BF16);
  if (plan.arguments.precision.bf16 && job.platform().capability(CONCORD_CAP_TORCH_BF16) == 0 && !why_slow.empty())
    notes_.push_back(fmt::format("{}; set bf16: false", why_slow));
  replace_file(plan.arguments.output.dir + "/training_args.yaml", to_yaml(plan.arguments));
}

void ReportCallback::on_train_begin(const TrainingArguments&, const TrainerState&, TrainerControl&) {
  report_.begin();
  for (const std::string& note : notes_) report_.note("note: " + note);
}
void ReportCallback::on_train_end(const TrainerState& state, const FinishReport& report) {
  report_.set_best(state.best);
  report_.finish(report);
}
void ReportCallback::on_step_end(const TrainerState& state, TrainerControl& control) {
  control.should_show_progress = report_.on_progress(state.global_step);
}
void ReportCallback::on_progress(const TrainerState&, const RecentSteps& recent) { report_.on_recent(recent); }
void ReportCallback::on_log(const TrainerState&, const StepReport& report, TrainerControl&) { report_.on_step(report); }
void ReportCallback::on_evaluate(const TrainerState&, const EvalReport& report, TrainerControl&) {
  report_.on_eval(report);
}
NamedTexts ReportCallback::checkpoint_files(const TrainerState& state) {
  report_.set_best(state.best);
  return {{kTrainerStateFile, report_.state_json()}};
}

}  // namespace concord
