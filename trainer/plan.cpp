#include "trainer/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <utility>

#include "core/config_error.h"
#include "core/mesh/initialize_args.h"
#include "core/models/parameter_plan.h"
#include "core/quoted.h"
#include "core/schedule/step_schedule.h"
#include "trainer/continuation.h"
#include "trainer/output_folder.h"
#include "trainer/prompts.h"
#include "trainer/training_state.h"

namespace concord {
namespace {

std::vector<StageLayers> stages_of(const TrainingArguments& a, const ModelConfig& config, const Schedule& schedule) {
  if (!a.pipeline.layout.empty()) {
    return parse_layer_layout(a.pipeline.layout, config.num_hidden_layers, schedule.pp, a.model_options.mtp.num_layers);
  }
  LayerDeal deal = a.pipeline.deal;
  deal.num_layers = config.num_hidden_layers;
  deal.pp = schedule.pp;
  deal.vpp = schedule.vpp;
  deal.placement = placement_of(schedule);
  return deal_layers(deal);
}

int64_t longest_sample(const TrainingArguments& a, const ModelConfig& config) {
  const bool is_cut = a.data.seq_length == 0 && a.data.cutoff_len > 0;
  const int64_t length = is_cut ? a.data.cutoff_len : a.data.seq_length;
  if (length > config.max_position_embeddings) {
    throw ConfigError(fmt::format("{} {} is greater than the model's max_position_embeddings {}; reduce it",
                                  is_cut ? "cutoff_len" : "seq_length", length, config.max_position_embeddings));
  }
  return length > 0 ? length : config.max_position_embeddings;
}

// The model's own, unless another one is given; that of a new model is beside its config.json.
std::string tokenizer_of(const TrainingArguments& a) {
  const std::filesystem::path config = a.model.config;
  return tokenizer_of_model(a.data.tokenizer, a.model.path.empty() ? config.parent_path().string() : a.model.path);
}

DataArguments data_arguments(const TrainingArguments& a, const ModelConfig& config, const RankLayout& layout,
                             int64_t rank) {
  const int64_t context = a.job.context_parallel_size > 1 ? 2 * a.job.context_parallel_size : 1;
  DataArguments data = a.data;
  data.tokenizer = tokenizer_of(a);
  data.seq_length = longest_sample(a, config);
  data.vocab_size = config.vocab_size;
  data.dp_rank = layout.coordinates(rank).dp;
  data.dp_size = layout.dp();
  if (data.seed <= 0) data.seed = a.job.seed;
  data.pad_multiple = context * (a.model_options.sequence_parallel ? a.job.tensor_model_parallel_size : 1);
  return data;
}

std::unique_ptr<DataLoader> open_train_data(const TrainingArguments& a, DataArguments data,
                                            std::unique_ptr<SampleSource> source) {
  if (a.steps.max_steps > 0) {
    int64_t samples = 0;
    if (__builtin_mul_overflow(a.steps.max_steps, data.micro_batch_size * data.accumulation, &samples) ||
        __builtin_mul_overflow(samples, data.dp_size, &samples)) {
      throw ConfigError(
          fmt::format("max_steps {} x per_device_train_batch_size {} x gradient_accumulation_steps {} x {} "
                      "data-parallel ranks overflows a 64-bit sample count; use a smaller max_steps",
                      a.steps.max_steps, data.micro_batch_size, data.accumulation, data.dp_size));
    }
    data.samples_wanted = samples;
  }
  return source ? std::make_unique<DataLoader>(data, std::move(source)) : std::make_unique<DataLoader>(data);
}

// Every sample once, in data order. As many micro-batches as there are stages keep a pipeline full.
std::unique_ptr<DataLoader> open_eval_data(const TrainingArguments& a, DataArguments data,
                                           std::unique_ptr<SampleSource> source) {
  data.path = a.evaluation.data;
  data.micro_batch_size = a.evaluation.batch_size;
  data.accumulation = a.job.pipeline_model_parallel_size;
  data.shuffle = false;
  data.drop_last = false;
  if (source) return std::make_unique<DataLoader>(data, std::move(source));
  return a.evaluation.data.empty() ? nullptr : std::make_unique<DataLoader>(data);
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
  throw ConfigError(fmt::format(
      "train_data {} has {} samples, fewer than the {} of one step (per_device_train_batch_size {} x "
      "gradient_accumulation_steps {} x data-parallel ranks); use more data or a smaller batch",
      quoted(a.data.path), data.samples(), data.global_batch_size(), a.data.micro_batch_size, a.data.accumulation));
}

template <class Value>
std::vector<std::pair<std::string, Value>> numbers_of(const std::map<std::string, std::string>& texts,
                                                      const char* argument) {
  std::vector<std::pair<std::string, Value>> numbers;
  for (const auto& [key, text] : texts) {
    Value value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) {
      throw ConfigError(fmt::format("{}: {} of {} is not a number", argument, quoted(text), quoted(key)));
    }
    numbers.emplace_back(key, value);
  }
  return numbers;
}

AdapterConfig new_adapter(const FinetuningArguments& a) {
  AdapterConfig adapter;
  adapter.r = a.rank;
  adapter.lora_alpha = a.alpha > 0 ? a.alpha : 2 * static_cast<double>(a.rank);
  adapter.lora_dropout = a.dropout;
  adapter.use_rslora = a.use_rslora;
  adapter.use_dora = a.use_dora;
  set_targets(a.target, &adapter);
  adapter.rank_pattern = numbers_of<int64_t>(a.rank_pattern, "rank_pattern");
  adapter.alpha_pattern = numbers_of<double>(a.alpha_pattern, "alpha_pattern");
  adapter.modules_to_save = a.modules_to_save;
  return adapter;
}

// An adapter that is started from has its own settings; others would be lost without a word.
void check_same_settings(const FinetuningArguments& given, const std::string& folder) {
  FinetuningArguments plain;
  plain.type = given.type;
  plain.adapter = given.adapter;
  plain.dropout = given.dropout;
  if (given == plain) return;
  throw ConfigError(
      fmt::format("{} has a rank, an alpha and targets of its own; remove lora_rank, lora_alpha, lora_target, "
                  "use_rslora, use_dora, rank_pattern, alpha_pattern and modules_to_save, or start without an adapter",
                  folder));
}

// |model| may be the folder of an adapter: it then becomes the one with the base model.
void plan_adapter(TrainingPlan* plan) {
  ModelSource& model = plan->arguments.model;
  FinetuningArguments& given = plan->arguments.finetuning;
  if (!model.path.empty() && has_adapter(model.path)) {
    if (!given.is_lora() || !given.adapter.empty()) {
      throw ConfigError(fmt::format(
          "{} holds an adapter, not a model; {}", model.path,
          given.is_lora() ? "give it as model or as adapter_name_or_path, not beside another one"
                          : "set finetuning_type: lora to go on training it, or merge it into its base model with "
                            "`concord merge`"));
    }
    given.adapter = std::exchange(model.path, base_folder_of(model.path));
  }
  if (!given.is_lora()) return;
  plan->adapter_folder = given.adapter;
  if (!given.adapter.empty()) check_same_settings(given, given.adapter);
  plan->adapter = given.adapter.empty() ? new_adapter(given) : read_adapter_config(given.adapter);
  if (!given.adapter.empty() && given.dropout > 0) plan->adapter->lora_dropout = given.dropout;
  plan->adapter->base_model = std::filesystem::absolute(model.path).lexically_normal().string();
}

// A step without a backward pass updates no weights; evaluation has its own schedule.
void check_trains(const Schedule& schedule) {
  if (!is_forward_only(schedule)) return;
  throw ConfigError(
      fmt::format("pipeline_schedule '{}' has no backward pass, so nothing would be trained; choose another kind "
                  "(`concord schedule --help` lists them)",
                  schedule.kind));
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
  check_can_continue(folder, read_training_state(folder), plan, parts);
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

InitializeArgs initialize_args(const TrainingPlan& plan) {
  InitializeArgs args = plan.arguments.job;
  args.virtual_pipeline_model_parallel_size = plan.schedule.vpp;
  return args;
}

std::optional<LossScaler> make_scaler(const TrainingArguments& a) {
  if (!a.precision.fp16) return std::nullopt;
  return LossScaler(a.loss_scaler);
}

TrainingPlan plan_training(const TrainingArguments& arguments, int64_t rank, int64_t world,
                           const DatasetProvider& datasets) {
  TrainingPlan plan;
  plan.arguments = arguments;
  plan_adapter(&plan);
  const ModelSource& model = plan.arguments.model;
  plan.config = read_model_config(model.path.empty() ? model.config : model.path);
  if (plan.adapter) plan.adapter = adapter_for(plan.config, *plan.adapter);
  plan.schedule = step_schedule(schedule_request(arguments));
  check_trains(plan.schedule);
  plan.stages = stages_of(arguments, plan.config, plan.schedule);
  const RankLayout layout = layout_of(initialize_args(plan), world);
  const DataArguments data = data_arguments(plan.arguments, plan.config, layout, rank);
  Datasets sets = datasets ? datasets(arguments) : Datasets{};
  const bool reads_files = !sets.train;
  plan.train_data = open_train_data(arguments, data, std::move(sets.train));
  plan.eval_data = open_eval_data(arguments, data, std::move(sets.eval));
  if (rank == 0 && reads_files) {
    plan.tokenizer_files = read_tokenizer_files(arguments.data.path, data.tokenizer);
  }
  plan.tokenizer = data.tokenizer;
  if (!arguments.evaluation.sample_prompts.empty()) {
    plan.sample_prompts = read_prompts(arguments.evaluation.sample_prompts, /*chat=*/false);
  }
  check_enough_data(arguments, *plan.train_data);
  plan.max_steps = arguments.steps.max_steps > 0 ? arguments.steps.max_steps
                                                 : steps_of_epochs(*plan.train_data, arguments.steps.num_train_epochs);
  plan.lr = arguments.lr;
  plan.lr.max_steps = plan.max_steps;
  plan.lr.global_batch_size = plan.train_data->global_batch_size();
  resolve_lr(plan.lr);  // reports errors in these two now
  make_scaler(arguments);
  if (!is_restarted_attempt()) check_resumption(plan);
  return plan;
}

}  // namespace concord
