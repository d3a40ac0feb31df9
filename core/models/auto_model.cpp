#include "core/models/auto_model.h"

#include <ATen/ops/empty.h>
#include <fmt/core.h>

#include <algorithm>
#include <iterator>

#include "core/base/config_error.h"
#include "core/base/refused_combinations.h"
#include "core/checkpoint/hf_dtype.h"
#include "core/checkpoint/hf_plan.h"
#include "core/models/adapters/merge_adapter.h"
#include "core/models/parameter_plan.h"
#include "core/models/precision/fp8_layers.h"
#include "core/models/precision/quantise_weights.h"
#include "core/models/vision/tower_plan.h"

namespace concord {
namespace {

constexpr int64_t kOneFile = int64_t{1} << 62;  // bytes: peft reads an adapter from one file

// Every part of the model once, in order.
void check_stages(const std::vector<StageLayers>& stages, const ModelConfig& config, const RankLayout& layout) {
  const auto refuse = [&](const std::string& why) {
    throw ConfigError(fmt::format("pipeline stages {}: {}", to_string(stages), why));
  };
  const auto wanted = static_cast<size_t>(layout.pp() * layout.vpp());
  if (stages.size() != wanted) {
    refuse(fmt::format(
        "there are {}, but pipeline_model_parallel_size {} times virtual_pipeline_model_parallel_size {} is {}",
        stages.size(), layout.pp(), layout.vpp(), wanted));
  }
  int64_t next = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    if (stages[i].embedding != (i == 0)) refuse("the embedding (E) must be on the first stage only");
    if (stages[i].loss != (i + 1 == stages.size())) refuse("the loss (L) must be on the last stage only");
    if (stages[i].first_layer != next)
      refuse(fmt::format("stage {} begins with layer {} instead of {}", i, stages[i].first_layer, next));
    next += stages[i].layers;
  }
  if (next != config.num_hidden_layers) {
    refuse(fmt::format("they have {} layers (t), but num_hidden_layers is {}", next, config.num_hidden_layers));
  }
}

std::vector<StageLayers> stages_of_model(const ModelConfig& config, const ModelArgs& args, const RankLayout& layout) {
  if (!args.stages.empty()) return args.stages;
  return assign_layers(
      {.num_layers = config.num_hidden_layers, .pp = layout.pp(), .vpp = layout.vpp(), .placement = args.placement});
}

// Names in files of the tensors of the model's own weights, or of its adapter. A file may have no others, except
// unused_tensors().
std::vector<std::string> tensors_of_model(const ModelConfig& config, const AdapterModules* adapter) {
  const StageLayers whole{.embedding = true, .layers = config.num_hidden_layers, .loss = true};
  std::vector<std::string> names;
  for (const ParameterPlan& plan : plan_parameters(config, whole, {.adapter = adapter})) {
    if (adapter != nullptr && plan.frozen) continue;
    for (const GlobalTensor& tensor : global_tensors(plan.spec)) {
      names.push_back(adapter != nullptr && !plan.adapter ? kAdapterPrefix + tensor.name : tensor.name);
    }
  }
  return names;
}

// Returns how the names of tensors begin that files may have and the model does not read: MTP layers that are not
// trained, and copies that MTP layers have of other weights.
std::vector<std::string> unused_tensors(const ModelConfig& config) {
  std::vector<std::string> beginnings = config.unused_tensors;
  for (int64_t i = 0; i < config.num_nextn_predict_layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", config.num_hidden_layers + i);
    if (i >= config.mtp_layers) beginnings.push_back(layer);
    for (const char* copy : {"embed_tokens.", "shared_head.head."}) beginnings.push_back(layer + copy);
  }
  return beginnings;
}

// The tensors of |weights| that saves write unchanged: those that the model does not use, except the copies of MTP
// layers that are trained. None if weights are quantized, since saves are not, and none in a
// reward model.
std::vector<Parameter> carried_tensors(const safetensors::Weights& weights, const ModelConfig& config) {
  std::vector<Parameter> carried;
  std::vector<std::string> beginnings = config.unused_tensors;
  for (int64_t i = config.mtp_layers; i < config.num_nextn_predict_layers; ++i) {
    beginnings.push_back(fmt::format("model.layers.{}.", config.num_hidden_layers + i));
  }
  for (const auto& [name, tensor] : weights.tensors()) {
    const auto begins_name = [&](const std::string& beginning) { return name.starts_with(beginning); };
    const std::optional<c10::ScalarType> type = float_type(tensor.info->dtype);
    if (!config.weight_block_size.empty() || config.is_reward_model || !type || tensor.info->shape.empty()) continue;
    if (std::none_of(beginnings.begin(), beginnings.end(), begins_name)) continue;
    Parameter& parameter = carried.emplace_back();
    parameter.spec.name = name;
    for (const int64_t size : tensor.info->shape) parameter.spec.dims.push_back({size});
    parameter.spec.replicated_over = {GroupKind::tp, GroupKind::dp_cp};
    parameter.value = at::empty(tensor.info->shape, *type);
    parameter.frozen = true;
  }
  return carried;
}

// The names that |weights| have for the text model; null: its own.
const TextPart* text_part_of(const safetensors::Weights& weights) {
  for (const TextPart& part : kTextParts) {
    if (weights.find(part.in_files("model.embed_tokens.weight")) != nullptr) return &part;
  }
  return nullptr;
}

// Adapters of a model with images have the names of its modules in transformers, whatever those in its files are.
std::string in_adapter(const std::string& name, const ModelConfig& config) {
  const size_t prefix = std::string_view(kAdapterPrefix).size();
  if (config.whole_text.empty() || !name.starts_with(kAdapterPrefix)) return name;
  return kAdapterPrefix + kTextParts[1].in_files(name.substr(prefix));
}

ShardSpec in_adapter(ShardSpec spec, const ModelConfig& config) {
  spec.name = in_adapter(spec.name, config);
  for (ShardSpec::Piece& piece : spec.pieces) piece.name = in_adapter(piece.name, config);
  return spec;
}

std::vector<std::string> unused_in_adapter(const ModelConfig& config) {
  std::vector<std::string> beginnings = unused_tensors(config);
  for (std::string& each : beginnings) each = kAdapterPrefix + each;
  return beginnings;
}

// Finds how the files have the experts of a layer. Published ones have two tensors, those that transformers saves three
// per expert. In Qwen 3 VL's two tensors either inputs or outputs come first: the one that is not square tells.
void find_form_of_experts(const safetensors::Weights& weights, ModelConfig* config) {
  ExpertConfig& experts = config->experts;
  int64_t layer = 0;
  while (layer < config->num_hidden_layers && !experts.has_layer(layer)) ++layer;
  if (layer == config->num_hidden_layers || experts.has_biases()) return;
  const auto find = [&](const std::string& tensor) {
    const std::string name = fmt::format("model.layers.{}.{}", layer, tensor);
    const safetensors::Weights::Tensor* found = weights.find(name);
    for (const TextPart& part : kTextParts) found = found != nullptr ? found : weights.find(part.in_files(name));
    return found;
  };
  const auto *const gate_up = find(experts.gate_up), *const down = find("mlp.experts.down_proj");
  if (gate_up == nullptr || down == nullptr) {
    experts.files = ExpertFiles::per_expert;
    return;
  }
  const int64_t inner = experts.intermediate_size, hidden = config->hidden_size;
  const auto first_is = [](const safetensors::Weights::Tensor& tensor, int64_t size) {
    return tensor.info->shape.size() == 3 && tensor.info->shape[1] == size;
  };
  const bool may_be = experts.are_inputs_first();
  const bool are = may_be && (hidden == 2 * inner ? first_is(*down, inner) : first_is(*gate_up, hidden));
  experts.files = are ? ExpertFiles::inputs_first : ExpertFiles::outputs_first;
}

ModelConfig config_in_use(const ModelConfig& config, const ModelArgs& args) {
  ModelConfig used = with_mtp(config, args.options.mtp.num_layers);
  if (!args.vision_tower) return used;
  if (used.mtp_layers > 0) {
    throw ConfigError(fmt::format(
        "mtp_num_layers is {} with images, whose features the MTP layer would need as embeddings of the next "
        "tokens; must be 0",
        used.mtp_layers));
  }
  return with_vision_tower(std::move(used));
}

void rename_in_files(const TextPart& part, ShardSpec* spec) {
  if (spec->name.starts_with(kTower) && part.here != kTower) return;  // not a part of the text model
  spec->name = part.in_files(spec->name);
  for (ShardSpec::Piece& piece : spec->pieces) piece.name = part.in_files(piece.name);
}

std::vector<Parameter*> pointers(std::vector<Parameter>& parameters) {
  std::vector<Parameter*> result;
  for (Parameter& parameter : parameters) result.push_back(&parameter);
  return result;
}

}  // namespace

VirtualModels::VirtualModels(const ModelConfig& config, const ModelArgs& args, ParallelContext& context,
                             const MakeChunk& make_chunk)
    : context_(&context), config_(config_in_use(config, args)), args_(args) {
  if (args.adapter && args.adapter->use_dora && args.options.fp8.is_on()) {
    throw ConfigError(
        refusal_message(Refused::dora_with_fp8, fmt::format("use_dora with fp8 {}", name_of(args.options.fp8.format))));
  }
  const RankLayout& layout = context.layout();
  args_.stages = stages_of_model(config, args, layout);
  check_stages(args_.stages, config, layout);
  const std::vector<int> ranks =
      place_stages(args.placement, static_cast<int>(layout.pp()), static_cast<int>(layout.vpp()));
  Parameter* embedding = nullptr;
  for (size_t stage = 0; stage < ranks.size(); ++stage) {
    if (ranks[stage] != context.coordinates().pp) continue;
    const bool uses_embedding = config.tie_word_embeddings || config_.mtp_layers > 0;
    const bool is_last_alone = args_.stages[stage].loss && !args_.stages[stage].embedding;
    Parameter* const borrowed = uses_embedding && is_last_alone ? embedding : nullptr;
    stages_.push_back(static_cast<int64_t>(stage));
    chunks_.push_back(make_chunk
                          ? make_chunk(config_, args_, args_.stages[stage], context)
                          : std::make_unique<ModelChunk>(config_, args_, args_.stages[stage], context, borrowed));
    if (args_.stages[stage].embedding) embedding = chunks_.back()->embedding();
  }
}

std::vector<Parameter*> VirtualModels::parameters() {
  std::vector<Parameter*> all;
  for (const auto& chunk : chunks_) {
    for (Parameter& parameter : chunk->parameters()) all.push_back(&parameter);
  }
  return all;
}

bool VirtualModels::has_start(const Parameter& parameter) const {
  return parameter.adapter && args_.adapter->modifies_base_weights();
}

void VirtualModels::begin_adapter() {
  for (const auto& chunk : chunks_) chunk->initialise(ModelChunk::Which::adapter);
  if (!args_.adapter->modifies_base_weights()) return;
  start_.compute(parameters(), AdapterModules(*args_.adapter), *context_, args_.seed);
}

// Copies, whose values are the same tensors.
std::vector<Parameter> VirtualModels::saved_parameters(bool with_values) {
  std::vector<Parameter> saved;
  for (const Parameter* parameter : parameters()) {
    if (args_.adapter && parameter->frozen && !parameter->adapter) continue;
    saved.push_back(!has_start(*parameter) ? *parameter
                    : with_values          ? start_.in_file(*parameter)
                                           : LoraInit::room_for(*parameter));
    if (args_.adapter && !parameter->adapter) saved.back().spec.name = kAdapterPrefix + parameter->spec.name;
    if (args_.adapter) saved.back().spec = in_adapter(saved.back().spec, config_);
  }
  return saved;
}

std::optional<SavedTensors> VirtualModels::saved_fp8(const std::optional<RankRange>& writers) {
  std::optional<SavedTensors> all;
  for (const auto& chunk : chunks_) {
    const Fp8Layers* const layers = chunk->fp8_layers();
    if (layers == nullptr) continue;
    SavedTensors saved =
        layers->saved(context_->rank() == first_of_stage(context_->layout(), context_->rank(), writers));
    if (!all) {
      all = std::move(saved);
      continue;
    }
    std::move(saved.tensors.begin(), saved.tensors.end(), std::back_inserter(all->tensors));
    std::move(saved.parts.begin(), saved.parts.end(), std::back_inserter(all->parts));
  }
  return all && !all->tensors.empty() ? std::move(all) : std::nullopt;
}

void VirtualModels::load_fp8(const std::string& folder) {
  for (const auto& chunk : chunks_) {
    if (Fp8Layers* const layers = chunk->fp8_layers()) layers->load(folder);
  }
}

void VirtualModels::load_saved(const std::filesystem::path& folder, bool share_reads) {
  std::optional<AdapterModules> adapter;
  if (args_.adapter) adapter.emplace(*args_.adapter);
  std::vector<std::string> tensors;  // unknown for a custom network
  if (!chunks_.front()->is_own()) tensors = tensors_of_model(config_, adapter ? &*adapter : nullptr);
  for (std::string& each : tensors) each = in_adapter(each, config_);
  const std::vector<std::string> unused = adapter ? unused_in_adapter(config_) : unused_tensors(config_);
  const std::vector<Parameter*> own = parameters();
  const ShardPlace place = shard_place(context_->layout(), context_->rank());
  std::vector<Parameter> saved = saved_parameters(/*with_values=*/false);
  load_hf_weights(folder.string(), pointers(saved), place,
                  {.stem = adapter ? kAdapterStem : safetensors::kModelStem,
                   .model_tensors = tensors,
                   .unused = unused,
                   .tied_embeddings = config_.tie_word_embeddings,
                   .sharing = share_reads ? context_ : nullptr});
  if (!adapter || !adapter->config().modifies_base_weights()) return;
  const bool is_first = !start_.is_known();
  for (Parameter* parameter : own) {
    if (!parameter->adapter) continue;
    const std::string name = in_adapter(parameter->spec.name, config_);
    const auto read =
        std::find_if(saved.begin(), saved.end(), [&](const Parameter& each) { return each.spec.name == name; });
    start_.take(*read, *parameter);
  }
  if (is_first) start_.subtract(own, *adapter, place);
}

// Large values stay mapped from the files.
void VirtualModels::carry_tensors(const std::string& folder) {
  const safetensors::Weights weights(folder);
  text_part_ = config_.whole_text.empty() ? nullptr : text_part_of(weights);
  carried_ = carried_tensors(weights, config_);
  load_hf_weights(folder, pointers(carried_), shard_place(context_->layout(), context_->rank()), {.map_files = true});
}

void VirtualModels::save_pretrained(const std::filesystem::path& folder, HfSaveOptions options) {
  start_save(folder, std::move(options), SaveJob::Source::live)->wait();
}

HfSaveOptions VirtualModels::with_config(HfSaveOptions options) const {
  if (args_.adapter) {
    options.stem = kAdapterStem;
    options.with_config = false;
    options.max_shard_bytes = kOneFile;
    options.more_files.emplace_back(kAdapterConfigFile, to_json(saved_form(*args_.adapter)));
  } else {
    if (options.config_json.empty()) options.config_json = text_part_ == nullptr ? config_.text : config_.whole_text;
    options.config_json = with_dtype(options.config_json, config_dtype(chunks_.front()->hidden_dtype()));
  }
  return options;
}

std::unique_ptr<SaveJob> VirtualModels::start_save(const std::filesystem::path& folder, HfSaveOptions options,
                                                   SaveJob::Source source,
                                                   std::shared_ptr<const GlobalSavePlan> previous) {
  options = with_config(std::move(options));
  std::vector<Parameter> saved = saved_parameters();
  if (text_part_ != nullptr && !args_.adapter) {
    for (Parameter& parameter : saved) rename_in_files(*text_part_, &parameter.spec);
  }
  if (!args_.adapter && context_->coordinates().pp == 0) saved.insert(saved.end(), carried_.begin(), carried_.end());
  if (args_.adapter && args_.adapter->modifies_base_weights()) {
    // These are written from memory of their own, which has to be there until they are.
    options.after_publish = [saved, then = std::move(options.after_publish)] {
      if (then) then();
    };
  }
  return std::make_unique<SaveJob>(folder.string(), pointers(saved), *context_, std::move(options), source,
                                   std::move(previous));
}

VirtualModels AutoModel::from_config(const ModelConfig& config, const ModelArgs& args, ParallelContext& context) {
  VirtualModels models(config, args, context);
  for (size_t i = 0; i < models.size(); ++i) models[i].initialise();
  return models;
}

VirtualModels AutoModel::from_pretrained(const std::filesystem::path& folder, const ModelArgs& args,
                                         ParallelContext& context) {
  ModelConfig saved = read_model_config(folder);
  const safetensors::Weights weights(folder.string());
  find_form_of_experts(weights, &saved);
  if (!saved.whole_text.empty() && !args.merged_adapters.empty()) {
    throw ConfigError(refusal_message(Refused::merged_adapter_on_images,
                                      fmt::format("adding adapters to {}, which has images,", folder.string())));
  }
  const bool is_new_score = args.is_reward_model && !saved.is_reward_model;
  VirtualModels models(is_new_score ? reward_model_config(saved) : saved, args, context);
  const std::vector<std::string> tensors = tensors_of_model(models.config(), nullptr);
  const std::vector<std::string> unused = unused_tensors(models.config());
  std::vector<Parameter*> own = models.parameters();
  std::erase_if(own, [&](const Parameter* parameter) {
    return parameter->adapter || (is_new_score && parameter->spec.name == "score.weight");
  });
  load_hf_weights(folder.string(), own, shard_place(context.layout(), context.rank()),
                  {.model_tensors = tensors,
                   .unused = unused,
                   .weight_block_size = models.config().weight_block_size,
                   .tied_embeddings = models.config().tie_word_embeddings || is_new_score,
                   .map_files = true,
                   .sharing = args.share_reads ? &context : nullptr});
  for (size_t i = 0; is_new_score && i < models.size(); ++i) models[i].initialise(ModelChunk::Which::score);
  for (const std::string& merged : args.merged_adapters) {
    merge_adapter(merged, own, shard_place(context.layout(), context.rank()), safetensors::Weights(folder.string()));
  }
  if (!args.adapter) {
    models.carry_tensors(folder.string());
    return models;
  }
  if (args.quantization_bit != 0) quantise_weights(own, context);
  if (args.adapter_folder.empty()) {
    models.begin_adapter();
  } else {
    models.load_saved(args.adapter_folder, args.share_reads);
  }
  return models;
}

}  // namespace concord
