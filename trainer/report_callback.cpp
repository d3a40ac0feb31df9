#include "trainer/report_callback.h"

#include <algorithm>

#include "trainer/argument_table.h"
#include "trainer/report/files.h"

namespace concord {
namespace {

bool reports_to(const TrainingArguments& a, const std::string& name) {
  const auto has = [&](const char* item) {
    return std::find(a.report_to.begin(), a.report_to.end(), item) != a.report_to.end();
  };
  return has("all") || has(name.c_str());
}

// The lines of the printed arguments without their comments, for the page.
NamedTexts configuration(const TrainingArguments& arguments) {
  NamedTexts texts;
  for (const ArgumentGroup& group : argument_groups()) {
    for (const Argument& argument : group.arguments) {
      texts.emplace_back(argument.name, argument_text(argument, arguments));
    }
  }
  return texts;
}

NamedTexts layout_texts(const ParallelContext& job, const TrainingPlan& plan) {
  const RankLayout& layout = job.layout();
  return {{"device", job.torch_device().str()},
          {"platform", std::string(job.platform().name())},
          {"processes", std::to_string(layout.world())},
          {"data parallel", std::to_string(layout.dp())},
          {"tensor parallel", std::to_string(layout.tp())},
          {"pipeline parallel", std::to_string(layout.pp())},
          {"context parallel", std::to_string(layout.cp())},
          {"schedule", plan.schedule.kind},
          {"parameters", std::to_string(parameter_count(plan.config))}};
}

TransformerShape shape_of(const ModelConfig& config, int64_t seq_length) {
  TransformerShape shape;
  shape.num_layers = config.num_hidden_layers;
  shape.hidden_size = config.hidden_size;
  shape.intermediate_size = config.intermediate_size;
  shape.num_attention_heads = config.num_attention_heads;
  shape.num_key_value_heads = config.num_key_value_heads;
  shape.head_dim = config.head_dim;
  shape.vocab_size = config.vocab_size;
  shape.seq_length = seq_length;
  return shape;
}

double peak_flops(const TrainingArguments& a, const ParallelContext& job) {
  if (a.peak_flops > 0) return a.peak_flops;
  return job.device().peak_flops(a.bf16 ? DType::kBF16 : a.fp16 ? DType::kF16 : DType::kF32);
}

RunDescription describe(const TrainingPlan& plan, const ParallelContext& job, int terminal) {
  const TrainingArguments& a = plan.arguments;
  RunDescription run;
  run.output_dir = a.output_dir;
  run.title = "Training " + plan.config.architecture;
  run.max_steps = plan.max_steps;
  run.num_train_epochs = a.num_train_epochs;
  run.logging_steps = steps_of(a.logging_steps, plan.max_steps);
  run.save_steps = steps_of(a.save_steps, plan.max_steps);
  run.eval_steps = a.eval_steps > 0 ? steps_of(a.eval_steps, plan.max_steps) : run.logging_steps;
  run.train_batch_size = a.per_device_train_batch_size;
  run.world_size = job.world();
  run.configuration = configuration(a);
  run.layout = layout_texts(job, plan);
  if (a.loss_floor > 0) run.loss_floor = a.loss_floor;
  run.shape = shape_of(plan.config, a.seq_length > 0 ? a.seq_length : plan.config.max_position_embeddings);
  run.peak_flops = peak_flops(a, job);
  run.progress = a.disable_tqdm ? ProgressMode::plain : ProgressMode::automatic;
  run.tensorboard = reports_to(a, "tensorboard");
  run.html = reports_to(a, "html");
  run.terminal = terminal;
  return run;
}

}  // namespace

ReportCallback::ReportCallback(const TrainingPlan& plan, const ParallelContext& job, int terminal)
    : report_(describe(plan, job, terminal)) {
  replace_file(plan.arguments.output_dir + "/training_args.yaml", to_yaml(plan.arguments));
}

void ReportCallback::on_train_end(const TrainerState&, const FinishReport& report) { report_.finish(report); }
void ReportCallback::on_step_end(const TrainerState& state, TrainerControl&) { report_.on_progress(state.global_step); }
void ReportCallback::on_log(const TrainerState&, const StepReport& report, TrainerControl&) { report_.on_step(report); }
void ReportCallback::on_evaluate(const TrainerState&, const EvalReport& report, TrainerControl&) {
  report_.on_eval(report);
}
void ReportCallback::on_save(const TrainerState&, const std::string& folder, TrainerControl&) {
  report_.write_state(folder);
}

}  // namespace concord
