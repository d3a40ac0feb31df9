#include "trainer/planning/plan_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "core/base/config_error.h"
#include "core/base/quoted.h"
#include "core/checkpoint/auxiliary_files.h"
#include "core/models/vision/vision_config.h"
#include "trainer/arguments/relations.h"
#include "trainer/data/media/media_processor.h"
#include "trainer/data/sources/blend.h"
#include "trainer/data/sources/split.h"
#include "trainer/data/text/token_cache.h"
#include "trainer/data/text/tokenizer_files.h"
#include "trainer/planning/plan_steps.h"

namespace concord {

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

namespace {

int64_t longest_sample(const TrainingArguments& a, const ModelConfig& config) {
  const bool is_cut = a.data.seq_length == 0 && a.data.cutoff_len > 0;
  const int64_t length = is_cut ? a.data.cutoff_len : a.data.seq_length;
  if (length > config.max_position_embeddings) {
    throw ConfigError(fmt::format("{} {} is greater than the model's max_position_embeddings {}; reduce it",
                                  is_cut ? "cutoff_len" : "seq_length", length, config.max_position_embeddings));
  }
  return length > 0 ? length : config.max_position_embeddings;
}

// Returns the folder of the model; that of a new one has its config.json.
std::string folder_of_model(const TrainingArguments& a) {
  const std::filesystem::path config = is_config_text(a.model.config) ? std::string() : a.model.config;
  return a.model.path.empty() ? config.parent_path().string() : a.model.path;
}

// Returns the given tokenizer, or the model's own.
std::string tokenizer_of(const TrainingArguments& a) {
  return tokenizer_of_model(a.data.tokenizer, folder_of_model(a));
}

// Throws ConfigError unless the model takes the images and videos of |source|.
void check_media(const SampleSource& source, const ModelConfig& config) {
  const MediaFormat* format = source.media_format();
  if (format == nullptr) return;
  const VisionConfig& vision = config.vision;
  if (vision.depth == 0) {
    throw ConfigError(fmt::format("{} has images, but the model ({}) has no vision tower that can be computed",
                                  source.name(), config.architecture));
  }
  std::array data = {format->patch_size, format->temporal_patch_size, format->merge_size, format->image_token,
                     format->video_token};
  const std::array model = {vision.patch_size, vision.temporal_patch_size, vision.tokens.merge,
                            vision.tokens.image_token, vision.tokens.video_token};
  if (format->video_token < 0) data.back() = vision.tokens.video_token;  // the data has no videos
  if (data == model && vision.in_channels == 3) return;
  throw ConfigError(fmt::format(
      "{}: the patch size, frames of a patch, merge size, image token and video token of its images are {}, "
      "but the model's are {}; convert the images with the processor of this model",
      source.name(), fmt::join(data, ", "), fmt::join(model, ", ")));
}

// Puts the vision tower in use if there are images.
void use_images(TrainingPlan* plan) {
  std::vector<const SampleSource*> sources{&plan->train_data->source()};
  for (const EvaluationSet& set : plan->eval_sets) sources.push_back(&set.data->source());
  if (plan->test_data) sources.push_back(&plan->test_data->source());
  for (const SampleSource* source : sources) {
    check_media(*source, plan->config);
    if (source->media_format() == nullptr) continue;
    plan->config = with_vision_tower(plan->config);
  }
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
  if (config.vision.depth > 0 && has_media_processor(folder_of_model(a))) data.media.processor = folder_of_model(a);
  data.cache = a.data.cache == "none" ? "" : a.data.cache.empty() ? default_token_cache() : a.data.cache;
  data.dataset = fields_of_files(a);
  take_data_sets("dataset", a.dataset.name, a.dataset.dir, &data);
  data.seq_length = longest_sample(a, config);
  data.vocab_size = config.vocab_size;
  data.pairs = a.preference.learns_pairs();
  data.dp_rank = layout.coordinates(rank).dp;
  data.dp_size = layout.dp();
  if (data.seed <= 0) data.seed = a.job.seed;
  data.speeds = given_speeds(a, layout.dp());
  data.micro_batch_unit = micro_batch_unit(a);
  data.ramp = batch_ramp(a.steps);
  data.pad_multiple = context * (a.model_options.sequence_parallel ? a.job.tensor_model_parallel_size : 1);
  return data;
}

TokenizerFiles files_of_tokenizer(const DataArguments& data) {
  const std::string first = data.blend.empty() ? data.path : parse_blend(data.blend).paths.front();
  const bool is_named = data.dataset || !data.blended_sets.empty();
  return is_named ? tokenizer_files(data.tokenizer) : read_tokenizer_files(first, data.tokenizer);
}

// -1 if it is not known.
int64_t eod_of(const DataArguments& data) { return end_of_document(files_of_tokenizer(data)).value_or(-1); }

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
  data.speeds.clear();
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

}  // namespace

void plan_data(TrainingPlan* plan, const RankLayout& layout, int64_t rank, Datasets provided) {
  TrainingArguments& a = plan->arguments;
  DataArguments data = data_arguments(a, plan->config, layout, rank);
  if (data.acts_at_document_ends() && data.eod_token_id < 0) data.eod_token_id = eod_of(data);
  plan->data = data;
  const bool reads_files = !provided.train;
  if (reads_files) check_training_data(a);
  plan->train_data = open_train_data(a, data, std::move(provided.train), provided.collator);
  plan->eval_sets = open_eval_sets(a, data, std::move(provided.eval), provided.collator);
  if (plan->eval_sets.empty()) a.evaluation.strategy = IntervalStrategy::no;
  plan->test_data = open_part(a, evaluation_arguments(a, data, DataPart::test), a.evaluation.test_data,
                              a.evaluation.test_blend, std::move(provided.test), provided.collator);
  use_images(plan);
  if (rank == 0 || a.saving.on_each_node) {
    // Refuses files that a save could not copy.
    if (const std::string& source = a.model.path; !source.empty()) auxiliary_files_in(source);
    if (reads_files) plan->tokenizer_files = files_of_tokenizer(data);
  }
  plan->tokenizer = data.tokenizer;
}

}  // namespace concord
