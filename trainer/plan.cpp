#include "trainer/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <utility>

#include "core/base/config_error.h"
#include "core/base/quoted.h"
#include "core/checkpoint/auxiliary_files.h"
#include "core/mesh/initialize_args.h"
#include "core/models/parameter_plan.h"
#include "core/schedule/step_schedule.h"
#include "trainer/arguments/relations.h"
#include "trainer/checkpoint/output_folder.h"
#include "trainer/checkpoint/resume_check.h"
#include "trainer/checkpoint/training_state.h"
#include "trainer/data/sources/blend.h"
#include "trainer/data/sources/split.h"
#include "trainer/data/text/token_cache.h"
#include "trainer/data/text/tokenizer_files.h"
#include "trainer/generation/prompts.h"
#include "trainer/parameter_groups.h"

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

int64_t longest_sample(const TrainingArguments& a, const ModelConfig& config) {
  const bool is_cut = a.data.seq_length == 0 && a.data.cutoff_len > 0;
  const int64_t length = is_cut ? a.data.cutoff_len : a.data.seq_length;
  if (length > config.max_position_embeddings) {
    throw ConfigError(fmt::format("{} {} is greater than the model's max_position_embeddings {}; reduce it",
                                  is_cut ? "cutoff_len" : "seq_length", length, config.max_position_embeddings));
  }
  return length > 0 ? length : config.max_position_embeddings;
}

// Returns the given tokenizer, or the model's own; that of a new model is next to its config.json.
std::string tokenizer_of(const TrainingArguments& a) {
  const std::filesystem::path config = is_config_text(a.model.config) ? std::string() : a.model.config;
  return tokenizer_of_model(a.data.tokenizer, a.model.path.empty() ? config.parent_path().string() : a.model.path);
}

// Without the spaces around them, as LLaMA-Factory reads such lists.
std::vector<std::string> between_commas(const char* argument, const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const size_t first = std::min(text.find_first_not_of(' ', begin), end);
    if (first == end) {
      throw ConfigError(
          fmt::format("{} is {}: there is nothing before or after a comma; remove the comma", argument, quoted(text)));
    }
    parts.push_back(text.substr(first, text.find_last_not_of(' ', end - 1) + 1 - first));
    begin = end + 1;
  }
  return parts;
}

// How records of files that are not in dataset_info.json are read; nullopt: by the usual names.
std::optional<DatasetInfo> fields_of_files(const TrainingArguments& a) {
  if (a.dataset.text_field == "text") return std::nullopt;
  DatasetInfo info;
  info.columns["prompt"] = a.dataset.text_field;
  return info;
}

// Several data sets are a blend, each of them read once.
void take_data_sets(const char* argument, const std::string& names, const std::string& dir, DataArguments* data) {
  if (names.empty()) return;
  data->path.clear();
  data->blend.clear();
  data->dataset.reset();
  data->blended_sets.clear();
  if (names.find(',') == std::string::npos) {
    data->dataset = read_dataset_info(dir, names);
    data->path = data->dataset->file;
    return;
  }
  for (const std::string& name : between_commas(argument, names)) {
    data->blended_sets.push_back(read_dataset_info(dir, name));
    data->blend.push_back(data->blended_sets.back().file);
  }
}

DataArguments data_arguments(const TrainingArguments& a, const ModelConfig& config, const RankLayout& layout,
                             int64_t rank) {
  const int64_t context = a.job.context_parallel_size > 1 ? 2 * a.job.context_parallel_size : 1;
  DataArguments data = a.data;
  data.tokenizer = tokenizer_of(a);
  data.cache = a.data.cache == "none" ? "" : a.data.cache.empty() ? default_token_cache() : a.data.cache;
  data.dataset = fields_of_files(a);
  take_data_sets("dataset", a.dataset.name, a.dataset.dir, &data);
  data.seq_length = longest_sample(a, config);
  data.vocab_size = config.vocab_size;
  data.pairs = a.preference.learns_pairs();
  data.dp_rank = layout.coordinates(rank).dp;
  data.dp_size = layout.dp();
  if (data.seed <= 0) data.seed = a.job.seed;
  data.ramp = batch_ramp(a.steps);
  data.pad_multiple = context * (a.model_options.sequence_parallel ? a.job.tensor_model_parallel_size : 1);
  return data;
}

// As Megatron's update_train_iters: a last batch that would not be whole is left out, and a batch that was decreased
// counts as the one that was asked for.
int64_t steps_of_samples(const TrainingArguments& a, const DataArguments& data) {
  const int64_t samples = a.steps.train_samples;
  const int64_t full = a.steps.decrease_batch_size ? a.steps.global_batch_size
                                                   : data.micro_batch_size * data.accumulation * data.dp_size;
  int64_t steps = 0, consumed = 0;
  while (data.ramp && consumed <= data.ramp->samples && consumed <= samples) {
    consumed += data.ramp->rows_after(consumed, full);
    ++steps;
  }
  steps += std::max<int64_t>(0, samples - consumed) / full;
  if (steps > 0) return steps;
  throw ConfigError(fmt::format("train_samples {} is less than the {} samples of one step", samples, full));
}

TokenizerFiles files_of_tokenizer(const DataArguments& data) {
  const std::string first = data.blend.empty() ? data.path : parse_blend(data.blend).paths.front();
  const bool is_named = data.dataset || !data.blended_sets.empty();
  return is_named ? tokenizer_files(data.tokenizer) : read_tokenizer_files(first, data.tokenizer);
}

// -1 if it is not known.
int64_t eod_of(const DataArguments& data) { return end_of_document(files_of_tokenizer(data)).value_or(-1); }

// Returns the number of samples of |steps| steps; nullopt if it exceeds 63 bits.
std::optional<int64_t> samples_of_steps(const DataArguments& data, int64_t steps) {
  const int64_t full = data.micro_batch_size * data.accumulation * data.dp_size;
  int64_t samples = 0;
  // A batch that grows is whole after at most this many steps.
  while (data.ramp && steps > 0 && samples <= data.ramp->samples) {
    samples += data.ramp->rows_after(samples, full);
    --steps;
  }
  int64_t rest = 0;
  if (__builtin_mul_overflow(steps, full, &rest) || __builtin_add_overflow(samples, rest, &samples)) {
    return std::nullopt;
  }
  return samples;
}

std::unique_ptr<DataLoader> open_train_data(const TrainingArguments& a, DataArguments data,
                                            std::unique_ptr<SampleSource> source, const DataCollator& collator) {
  if (a.steps.train_samples > 0) {
    data.samples_wanted = a.steps.train_samples;
  } else if (a.steps.max_steps > 0) {
    data.samples_wanted = samples_of_steps(data, a.steps.max_steps);
    if (!data.samples_wanted) {
      throw ConfigError(
          fmt::format("max_steps {} x per_device_train_batch_size {} x gradient_accumulation_steps {} x {} "
                      "data-parallel ranks overflows a 64-bit sample count; use a smaller max_steps",
                      a.steps.max_steps, data.micro_batch_size, data.accumulation, data.dp_size));
    }
  }
  return source ? std::make_unique<DataLoader>(data, std::move(source), collator) : std::make_unique<DataLoader>(data);
}

// How validation and test data are read: every sample once, in data order. As many micro-batches as there are stages
// keep a pipeline full.
DataArguments evaluation_arguments(const TrainingArguments& a, DataArguments data, DataPart part) {
  data.part = part;
  data.micro_batch_size = a.evaluation.batch_size;
  data.accumulation = a.job.pipeline_model_parallel_size;
  data.ramp = std::nullopt;
  data.shuffle = false;
  data.drop_last = false;
  return data;
}

// Opens the first of |source|, the named data and (with a split) the training data that exists; null if none does.
std::unique_ptr<DataLoader> open_part(const TrainingArguments& a, DataArguments data, const std::string& path,
                                      const std::vector<std::string>& blend, std::unique_ptr<SampleSource> source,
                                      const DataCollator& collator) {
  if (source) return std::make_unique<DataLoader>(data, std::move(source), collator);
  if (data.split.empty()) {
    if (path.empty() && blend.empty()) return nullptr;
    data.path = path;
    data.blend = blend;
    data.dataset = fields_of_files(a);
    data.blended_sets.clear();
  } else if (!parse_split(data.split)[static_cast<size_t>(data.part)]) {
    return nullptr;
  }
  const bool has_weights = !parse_blend(data.blend).weights.empty();
  if (has_weights && a.evaluation.iters > 0) {
    data.samples_wanted = a.evaluation.iters * data.micro_batch_size * data.accumulation * data.dp_size;
  }
  return std::make_unique<DataLoader>(data);
}

std::vector<EvaluationSet> open_eval_sets(const TrainingArguments& a, const DataArguments& train,
                                          std::unique_ptr<SampleSource> source, const DataCollator& collator) {
  DataArguments data = evaluation_arguments(a, train, DataPart::valid);
  std::vector<EvaluationSet> sets;
  if (!a.dataset.eval_name.empty()) {
    take_data_sets("eval_dataset", a.dataset.eval_name, a.dataset.dir, &data);
    sets.push_back({"", std::make_unique<DataLoader>(data)});
    return sets;
  }
  for (const auto& [name, path] : a.evaluation.sets) sets.push_back({name, open_part(a, data, path, {}, nullptr, {})});
  if (!sets.empty()) return sets;
  if (auto only = open_part(a, data, a.evaluation.data, a.evaluation.blend, std::move(source), collator)) {
    sets.push_back({"", std::move(only)});
  }
  return sets;
}

// |epochs| may be fractional; with packed data the number of steps differs between epochs.
int64_t steps_of_epochs(const DataLoader& data, double epochs) {
  constexpr double kMaxSteps = 9e15;
  const double whole = std::floor(epochs);
  double steps = 0;
  for (int64_t epoch = 0; epoch < static_cast<int64_t>(whole) && steps < kMaxSteps; ++epoch) {
    steps += static_cast<double>(data.batches(epoch));
  }
  if (epochs > whole) {
    steps += std::ceil((epochs - whole) * static_cast<double>(data.batches(static_cast<int64_t>(whole))));
  }
  return static_cast<int64_t>(std::min(steps, kMaxSteps));
}

void check_enough_data(const TrainingArguments& a, const DataLoader& data) {
  if (data.batches(0) > 0) return;
  throw ConfigError(
      fmt::format("train_data {} has {} samples, fewer than the {} of one step (per_device_train_batch_size {} x "
                  "gradient_accumulation_steps {} x data-parallel ranks); use more data or a smaller batch",
                  quoted(data.source().name()), data.samples(), data.global_batch_size(), a.data.micro_batch_size,
                  a.data.accumulation));
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
  adapter.init_lora_weights = a.init;
  set_targets(a.target, &adapter);
  adapter.target_parameters = a.target_parameters;
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
  plain.quantization_bit = given.quantization_bit;
  if (given == plain) return;
  throw ConfigError(
      fmt::format("{} has a rank, an alpha and targets of its own; remove lora_rank, lora_alpha, lora_target, "
                  "lora_target_parameters, use_rslora, use_dora, init_lora_weights, rank_pattern, alpha_pattern and "
                  "modules_to_save, or start without an adapter",
                  folder));
}

// A folder may have a comma in its name.
std::vector<std::string> adapters_of(const std::string& text) {
  if (text.empty()) return {};
  return has_adapter(text) ? std::vector{text} : between_commas("adapter_name_or_path", text);
}

// What was added to the weights before |trained|, which is empty for a new adapter: it remembers that.
std::vector<std::string> merged_before(std::vector<std::string> given, const std::string& trained) {
  for (std::string& each : given) each = std::filesystem::absolute(each).lexically_normal().string();
  if (trained.empty()) return given;
  const std::vector<std::string> own = read_adapter_config(trained).merged_adapters;
  if (given.empty() || given == own) return own;
  if (own.empty()) return given;
  throw ConfigError(
      fmt::format("{} was trained on a base model with {} merged, not {}; pass exactly these adapters, or none",
                  trained, fmt::join(own, ", "), fmt::join(given, ", ")));
}

// |model| may be the folder of an adapter: it then becomes the one with the base model.
void plan_adapter(TrainingPlan* plan) {
  ModelSource& model = plan->arguments.model;
  FinetuningArguments& given = plan->arguments.finetuning;
  if (!model.path.empty() && has_adapter(model.path)) {
    if (!given.is_lora() || !given.adapter.empty()) {
      throw ConfigError(fmt::format(
          "{} holds an adapter, not a model; {}", model.path,
          given.is_lora() ? "give it as model or as adapter_name_or_path, not both"
                          : "set finetuning_type: lora to continue training it, or merge it into its base model with "
                            "`concord merge`"));
    }
    given.adapter = std::exchange(model.path, base_folder_of(model.path));
  }
  if (!given.is_lora()) return;
  std::vector<std::string> folders = adapters_of(given.adapter);
  if (!folders.empty() && !given.new_adapter) {
    plan->adapter_folder = folders.back();
    folders.pop_back();
  }
  const std::string& trained = plan->adapter_folder;
  plan->merged_adapters = merged_before(std::move(folders), trained);
  if (!trained.empty()) check_same_settings(given, trained);
  plan->adapter = trained.empty() ? new_adapter(given) : read_adapter_config(trained);
  plan->adapter->merged_adapters = plan->merged_adapters;
  if (plan->arguments.preference.stage == TrainingStage::rm && trained.empty()) {
    plan->adapter->modules_to_save.push_back("score");  // new, as in peft's task SEQ_CLS
  }
  if (!trained.empty() && given.dropout > 0) plan->adapter->lora_dropout = given.dropout;
  plan->adapter->base_model = std::filesystem::absolute(model.path).lexically_normal().string();
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

TrainingPlan plan_training(const TrainingArguments& arguments, int64_t rank, int64_t world,
                           const DatasetProvider& datasets) {
  TrainingPlan plan;
  plan.arguments = arguments;
  plan_adapter(&plan);
  plan.config = model_config_of(plan.arguments);
  if (plan.arguments.finetuning.type == FinetuningType::freeze) {
    const std::string frozen = frozen_pattern(plan.arguments.finetuning, plan.config.num_hidden_layers);
    std::vector<std::string>& freeze = plan.arguments.groups.freeze;
    if (std::ranges::find(freeze, frozen) == freeze.end()) freeze.push_back(frozen);
  }
  if (plan.adapter) plan.adapter = adapter_for(plan.config, *plan.adapter);
  if (!arguments.preference.ref_model.empty()) check_reference(arguments.preference.ref_model, plan.config);
  plan.schedule = step_schedule(schedule_request(arguments));
  plan.stages = stages_of(arguments, plan.config, plan.schedule);
  const RankLayout layout = layout_of(initialize_args(plan), world);
  DataArguments data = data_arguments(plan.arguments, plan.config, layout, rank);
  if (data.acts_at_document_ends() && data.eod_token_id < 0) data.eod_token_id = eod_of(data);
  plan.data = data;
  Datasets sets = datasets ? datasets(arguments) : Datasets{};
  const bool reads_files = !sets.train;
  if (reads_files) check_training_data(arguments);
  plan.train_data = open_train_data(arguments, data, std::move(sets.train), sets.collator);
  plan.eval_sets = open_eval_sets(arguments, data, std::move(sets.eval), sets.collator);
  if (plan.eval_sets.empty()) plan.arguments.evaluation.strategy = IntervalStrategy::no;
  plan.test_data =
      open_part(arguments, evaluation_arguments(arguments, data, DataPart::test), arguments.evaluation.test_data,
                arguments.evaluation.test_blend, std::move(sets.test), sets.collator);
  if (rank == 0 || arguments.saving.on_each_node) {
    // Refuses files that a save could not copy.
    if (const std::string& source = plan.arguments.model.path; !source.empty()) auxiliary_files_in(source);
    if (reads_files) plan.tokenizer_files = files_of_tokenizer(data);
  }
  plan.tokenizer = data.tokenizer;
  check_groups(plan);
  if (!arguments.evaluation.sample_prompts.empty()) {
    plan.sample_prompts = read_prompts(arguments.evaluation.sample_prompts, /*chat=*/false);
  }
  check_enough_data(arguments, *plan.train_data);
  plan.max_steps = arguments.steps.train_samples > 0 ? steps_of_samples(arguments, data)
                   : arguments.steps.max_steps > 0
                       ? arguments.steps.max_steps
                       : steps_of_epochs(*plan.train_data, arguments.steps.num_train_epochs);
  plan.lr = arguments.lr;
  plan.lr.train_samples = arguments.steps.train_samples;
  plan.lr.max_steps = plan.max_steps;
  plan.lr.global_batch_size = plan.train_data->global_batch_size();
  const bool counts_samples = plan.lr.warmup_samples > 0 && plan.lr.train_samples == 0;
  if (data.ramp && counts_samples && plan.lr.lr_decay_steps == 0 && plan.lr.lr_decay_samples == 0) {
    plan.lr.lr_decay_samples = samples_of_steps(data, plan.max_steps).value_or(0);
  }
  const std::vector<int64_t> skipped = skipped_steps(arguments.steps);
  plan.skipped_steps = {skipped.begin(), skipped.end()};
  if (arguments.groups.decoupled_lr > 0) {
    plan.decoupled_lr = plan.lr;
    plan.decoupled_lr->learning_rate = arguments.groups.decoupled_lr;
    if (arguments.groups.decoupled_min_lr >= 0) plan.decoupled_lr->min_lr = arguments.groups.decoupled_min_lr;
    resolve_lr(*plan.decoupled_lr);
  }
  resolve_lr(plan.lr);  // reports errors in these now
  make_scaler(arguments);
  if (!is_restarted_attempt()) check_resumption(plan);
  return plan;
}

}  // namespace concord
