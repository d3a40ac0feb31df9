#include "core/models/config.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/config_error.h"
#include "core/base/files/input_file.h"
#include "core/base/parse_json.h"
#include "core/models/config_reader.h"
#include "core/models/families/family.h"
#include "core/models/families/module_config.h"
#include "core/models/nearest_family.h"

namespace concord {
namespace {

using nlohmann::json;

constexpr int kDeepest = 32;
constexpr uint64_t kMaxFileBytes = 16 << 20;
constexpr IntegerRange kVocabulary{1, (int64_t{1} << 31) - 1};  // token ids are int32 in data
constexpr IntegerRange kSize{1, int64_t{1} << 24};
constexpr IntegerRange kLayers{1, int64_t{1} << 16};
constexpr IntegerRange kHeads{1, int64_t{1} << 16};
constexpr IntegerRange kPositions{1, int64_t{1} << 40};

json parse(std::string_view text, const std::string& file) {
  const auto limit = [&](int depth, json::parse_event_t, json&) {
    if (depth > kDeepest) throw ConfigError(fmt::format("{}: is nested deeper than {} levels", file, kDeepest));
    return true;
  };
  return parse_json(text, file, limit);
}

std::string known_architectures() {
  std::vector<std::string> names;
  for (const Family* family : all_families()) names.emplace_back(family->architecture);
  return fmt::format("{}", fmt::join(names, ", "));
}

// The name of transformers' class for classifying sequences, which reward models are; empty: it has none.
std::string scoring_architecture(const Family& family) {
  if (family.scoring_architecture != nullptr) return family.scoring_architecture;
  std::string name = family.architecture;
  constexpr std::string_view kGenerates = "ForCausalLM";
  if (name.ends_with(kGenerates)) name.resize(name.size() - kGenerates.size());
  return name + "ForSequenceClassification";
}

bool names_reward_model(const ConfigReader& read, const Family& family) {
  const std::vector<std::string> architectures = read.texts("architectures");
  return std::ranges::find(architectures, scoring_architecture(family)) != architectures.end();
}

const Family& family_of(const ConfigReader& read) {
  const std::string model_type = read.text("model_type");
  const auto families = all_families();
  const auto found = std::find_if(families.begin(), families.end(),
                                  [&](const Family* family) { return family->model_type == model_type; });
  if (found == families.end()) {
    read.refuse("model_type", fmt::format("must be one of {}; {}", known_model_types(), nearest_family(read)));
  }
  const std::vector<std::string> architectures = read.texts("architectures");
  const std::string wanted = (*found)->architecture;
  if (!architectures.empty() && std::ranges::find(architectures, wanted) == architectures.end() &&
      !names_reward_model(read, **found)) {
    read.refuse("architectures", fmt::format("must name {} for model_type {}; supported are {}", wanted, model_type,
                                             known_architectures()));
  }
  return **found;
}

// The family whose text models are a part of |read|'s model; null: it is a text model itself.
const Family* part_of(const ConfigReader& read) {
  const std::string model_type = read.text("model_type", "");
  const auto is_whole = [&](const Family* each) {
    return each->whole_model_type != nullptr && model_type == each->whole_model_type;
  };
  const auto families = all_families();
  const auto found = std::ranges::find_if(families, is_whole);
  return found == families.end() ? nullptr : *found;
}

// The config of |family|'s text model in a |whole| one with images: what transformers would write for it alone.
json text_model(const json& whole, const ConfigReader& read, const Family& family) {
  const std::vector<std::string> architectures = read.texts("architectures");
  if (!architectures.empty() && std::ranges::find(architectures, family.whole_architecture) == architectures.end()) {
    read.refuse("architectures",
                fmt::format("must name {} for model_type {}", family.whole_architecture, family.whole_model_type));
  }
  json text = parse_json(family.text_defaults, family.model_type);
  if (read.has("text_config") || family.vision == nullptr) {
    read.object("text_config");
    text.update(whole["text_config"]);
  } else {  // older files have its keys at their root
    text.update(whole);
    text.erase("vision_config");
  }
  if (whole.contains("tie_word_embeddings")) text["tie_word_embeddings"] = whole["tie_word_embeddings"];
  for (const char* key :
       {"dtype", "torch_dtype", "bos_token_id", "eos_token_id", "pad_token_id", "quantization_config"}) {
    if (!text.contains(key) && whole.contains(key)) text[key] = whole[key];
  }
  text["model_type"] = family.model_type;
  text["architectures"] = {family.architecture};
  return text;
}

// ------------------------------------------------------------------------------------------------------------- rope

// The values are checked where the angles are computed.
// Older files of models with three axes of positions name the type mrope.
RopeType rope_type_of(const ConfigReader& rope, bool has_axes) {
  const std::string key = rope.has("rope_type") || !rope.has("type") ? "rope_type" : "type";
  if (!rope.has(key) && rope.has("factor")) rope.refuse(key, "is required together with factor");
  const std::string name = rope.text(key, "default");
  const std::optional<RopeType> type = find_enum<RopeType>(has_axes && name == "mrope" ? "default" : name);
  if (!type) rope.refuse(key, "must be one of " + comma_separated(kEnumNames<RopeType>));
  if (*type == RopeType::linear || *type == RopeType::dynamic || *type == RopeType::llama3) rope.positive("factor");
  if (*type == RopeType::llama3) {
    for (const char* factor : {"low_freq_factor", "high_freq_factor"}) rope.positive(factor);
  }
  return *type;
}

void read_rotated_part(const ConfigReader& read, const Family& family, RopeSettings& out) {
  out.partial_rotary_factor = read.positive("partial_rotary_factor", out.partial_rotary_factor);
  if (family.default_partial_rotary_factor == 0 && out.partial_rotary_factor != 1) {
    read.refuse("partial_rotary_factor", "must be 1");
  }
}

void check_rotated_part(const ConfigReader& read, const RopeSettings& rope) {
  const auto rotated = static_cast<int64_t>(static_cast<double>(rope.head_dim) * rope.partial_rotary_factor);
  if (rope.partial_rotary_factor <= 1 && rotated >= 2 && rotated % 2 == 0) return;
  read.refuse(fmt::format(
      "heads have {} elements (head_dim, or hidden_size / num_attention_heads), of which partial_rotary_factor "
      "{:g} leaves {}; rope rotates pairs, so it must be even, at least 2 and at most all",
      rope.head_dim, rope.partial_rotary_factor, rotated));
}

void read_rope_values(const ConfigReader& rope, const Family& family, RopeSettings& out) {
  const auto optional = [&](const std::string& key, std::optional<double>& value) {
    if (rope.has(key)) value = rope.positive(key);
  };
  out.rope_type = rope_type_of(rope, family.vision != nullptr);
  if (family.vision != nullptr && rope.has("mrope_section")) {
    out.mrope_section = rope.integers("mrope_section", {0, int64_t{1} << 20});
  }
  out.rope_theta = rope.positive("rope_theta", out.rope_theta);
  optional("factor", out.factor);
  optional("low_freq_factor", out.low_freq_factor);
  optional("high_freq_factor", out.high_freq_factor);
  optional("attention_factor", out.attention_factor);
  if (rope.has("mscale")) out.mscale = rope.not_negative("mscale");
  if (rope.has("mscale_all_dim")) out.mscale_all_dim = rope.not_negative("mscale_all_dim");
  out.beta_fast = rope.positive("beta_fast", out.beta_fast);
  out.beta_slow = rope.positive("beta_slow", out.beta_slow);
  out.truncate = rope.flag("truncate", out.truncate);
  out.original_max_position_embeddings =
      rope.integer("original_max_position_embeddings", kPositions, out.original_max_position_embeddings);
  read_rotated_part(rope, family, out);
  if (out.rope_type == RopeType::llama3 && !(*out.high_freq_factor > *out.low_freq_factor)) {
    rope.refuse("high_freq_factor", fmt::format("must be greater than low_freq_factor, {:g}", *out.low_freq_factor));
  }
}

// If layers with a window have their own rope, transformers 5 stores one object for each kind of layer.
ConfigReader rope_of_layers(const ConfigReader& rope, const Family& family, const char* layer_type) {
  return family.default_window_rope_theta > 0 && rope.has(layer_type) ? rope.object(layer_type) : rope;
}

// That of layers with a window: older files have only its theta.
RopeSettings read_window_rope(const ConfigReader& read, const Family& family, const ModelConfig& model) {
  RopeSettings rope{.rope_theta = read.positive("rope_local_base_freq", family.default_window_rope_theta),
                    .head_dim = model.head_dim,
                    .max_position_embeddings = model.max_position_embeddings,
                    .original_max_position_embeddings = model.max_position_embeddings};
  if (!read.has("rope_parameters")) return rope;
  const ConfigReader all = read.object("rope_parameters");
  if (all.has("sliding_attention")) read_rope_values(all.object("sliding_attention"), family, rope);
  return rope;
}

RopeSettings read_rope(const ConfigReader& read, const Family& family, const ModelConfig& model) {
  RopeSettings rope;
  rope.head_dim = model.head_dim;
  rope.max_position_embeddings = model.max_position_embeddings;
  rope.original_max_position_embeddings =
      read.integer("original_max_position_embeddings", kPositions, model.max_position_embeddings);
  rope.rope_theta = read.positive("rope_theta", family.default_rope_theta);
  if (family.default_partial_rotary_factor != 0) rope.partial_rotary_factor = family.default_partial_rotary_factor;
  read_rotated_part(read, family, rope);
  if (family.vision != nullptr) {
    rope.mrope_section = family.vision->mrope_section;
    rope.mrope_interleaved = family.vision->mrope_interleaved;
  }
  for (const char* key : {"rope_scaling", "rope_parameters"}) {  // the older name takes precedence in transformers too
    if (!read.has(key)) continue;
    read_rope_values(rope_of_layers(read.object(key), family, "full_attention"), family, rope);
    break;
  }
  check_rotated_part(read, rope);
  if (rope.rope_type == RopeType::dynamic && static_cast<double>(rope.head_dim) * rope.partial_rotary_factor < 4) {
    read.refuse("rope type dynamic requires more than 2 elements of a head to be rotated");
  }
  return rope;
}

// ------------------------------------------------------------------------------------------------------------ sizes

void read_sizes(const ConfigReader& read, const Family& family, ModelConfig& model) {
  model.vocab_size = read.integer("vocab_size", kVocabulary);
  model.hidden_size = read.integer("hidden_size", kSize);
  model.intermediate_size = read.integer(family.intermediate_key, kSize);
  model.num_hidden_layers = read.integer("num_hidden_layers", kLayers);
  model.num_attention_heads = read.integer("num_attention_heads", kHeads);
  const bool as_heads =
      family.default_key_value_heads == 0 || read.names("num_key_value_heads");  // null: same as heads
  model.num_key_value_heads = read.integer("num_key_value_heads", kHeads,
                                           as_heads ? model.num_attention_heads : family.default_key_value_heads);
  if (model.num_attention_heads % model.num_key_value_heads != 0) {
    read.refuse(fmt::format("num_attention_heads {} must be a multiple of num_key_value_heads {}",
                            model.num_attention_heads, model.num_key_value_heads));
  }
  const bool has_own_size = read.has("head_dim") || family.default_head_dim != 0;
  if (!has_own_size && model.hidden_size % model.num_attention_heads != 0) {
    read.refuse(fmt::format("hidden_size {} must be a multiple of num_attention_heads {} if head_dim is not given",
                            model.hidden_size, model.num_attention_heads));
  }
  model.head_dim = read.integer(
      "head_dim", kSize,
      family.default_head_dim != 0 ? family.default_head_dim : model.hidden_size / model.num_attention_heads);
  model.max_position_embeddings = read.integer("max_position_embeddings", kPositions, 2048);
  if (static_cast<double>(model.num_attention_heads) * static_cast<double>(model.head_dim) > kSize.most) {
    read.refuse(fmt::format("num_attention_heads {} times head_dim {} must be <= {}", model.num_attention_heads,
                            model.head_dim, kSize.most));
  }
}

void read_numbers(const ConfigReader& read, ModelConfig& model) {
  model.rms_norm_eps = read.positive("rms_norm_eps", 1e-6);
  model.initializer_range = read.not_negative("initializer_range", 0.02);
  model.tie_word_embeddings = read.flag("tie_word_embeddings", false);
  model.windows.assign(static_cast<size_t>(model.num_hidden_layers), 0);
  model.dtype = read.text(read.has("dtype") ? "dtype" : "torch_dtype", "float32");
  const std::vector<std::string> types{"float32", "bfloat16", "float16", "float64"};
  if (std::find(types.begin(), types.end(), model.dtype) == types.end()) {
    read.refuse(read.has("dtype") ? "dtype" : "torch_dtype", fmt::format("must be one of {}", fmt::join(types, ", ")));
  }
}

// transformers counts labels by their names, and assumes two if none are given.
void read_reward_model(const ConfigReader& read, const Family& family, ModelConfig& model) {
  model.is_reward_model = names_reward_model(read, family);
  if (!model.is_reward_model) return;
  const bool has_one = read.has("id2label") ? read.object("id2label").keys() == 1
                                            : read.integer("num_labels", {1, int64_t{1} << 31}, 2) == 1;
  if (!has_one) {
    read.refuse(fmt::format("{} must have one label (id2label or num_labels) to be a reward model",
                            scoring_architecture(family)));
  }
  model.architecture = scoring_architecture(family);
  model.tie_word_embeddings = false;
}

// Settings that would change the results compared with transformers if they were ignored.
void refuse_the_rest(const ConfigReader& read, const Family& family, ModelConfig& model) {
  const std::string activation = read.text(family.activation_key, family.activation);
  if ((activation == "swish" ? "silu" : activation) != family.activation) {
    read.refuse(family.activation_key, fmt::format("must be {}", family.activation));
  }
  model.attention_dropout = read.not_negative("attention_dropout", 0);
  if (model.attention_dropout >= 1) read.refuse("attention_dropout", "must be < 1");
}

// Reads the quantisation of the weights: FP8 with one scale per block, as in DeepSeek's files, or MXFP4, as in GPT-OSS
// (mxfp4.h). Other kinds are rejected.
void read_quantization(const ConfigReader& read, ModelConfig& model) {
  if (!read.has("quantization_config")) return;
  const ConfigReader how = read.object("quantization_config");
  if (how.text("quant_method", "") == "mxfp4") return;
  const std::string format = how.text("fmt", "e4m3");
  const bool is_e4m3 = format == "e4m3" || format == "float8_e4m3fn";
  if (how.text("quant_method", "") != "fp8" || !is_e4m3 || !how.has("weight_block_size")) {
    read.refuse(
        "quantization_config",
        "is not supported: quant_method must be mxfp4, or fp8 with fmt e4m3 and a weight_block_size; save the model "
        "without it first, with transformers");
  }
  model.weight_block_size = how.integers("weight_block_size", {1, int64_t{1} << 20});
  if (model.weight_block_size.size() != 2) how.refuse("weight_block_size", "must have two numbers, rows and columns");
}

double latent_parameters_of(const ModelConfig& model) {
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  const LatentConfig& latent = model.latent;
  const double hidden = number(model.hidden_size), heads = number(model.num_attention_heads);
  const double query = number(latent.q_lora_rank), keys = number(latent.kv_lora_rank);
  const double compressed = number(latent.compressed());
  const double q = heads * number(model.head_dim), v = heads * number(latent.v_head_dim);
  double count = query > 0 ? query * (hidden + 1 + q) : hidden * q;  // with the norm of the latent
  count += hidden * compressed + keys + keys * (heads * number(latent.qk_nope_head_dim) + v) + v * hidden;
  return latent.bias ? count + query + compressed : count;
}

// Returns the parameters of a delta layer, without its norms.
double delta_parameters_of(const ModelConfig& model) {
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  const DeltaConfig& delta = model.delta;
  const double hidden = number(model.hidden_size), heads = number(delta.value_heads);
  const double keys = number(delta.key_heads) * number(delta.key_dim), values = heads * number(delta.value_dim);
  const double in = hidden * (2 * (keys + values) + 2 * heads);
  return in + (2 * keys + values) * number(delta.taps) + 2 * heads + number(delta.value_dim) + values * hidden;
}

double parameters_of_module(const ModelConfig& model) {
  double count = 0;
  for (const ModuleParameter& parameter : model.module) {
    double elements = 1;
    for (const int64_t size : parameter.shape) elements *= static_cast<double>(size);
    count += elements;
  }
  return count;
}

double parameters_of(const ModelConfig& model) {
  if (!model.module.empty()) return parameters_of_module(model);
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  const double hidden = number(model.hidden_size), inner = number(model.intermediate_size);
  const ExpertConfig& experts = model.experts;
  const double sparse = number(experts.layers());
  const double q = number(model.num_attention_heads) * number(model.head_dim);
  const double kv = number(model.num_key_value_heads) * number(model.head_dim);
  const double own_q = model.attention_gate ? 2 * q : q;
  double attention = model.latent.used() ? latent_parameters_of(model) : hidden * (own_q + q + 2 * kv);
  if (model.qkv_bias) attention += own_q + 2 * kv;
  if (model.output_bias) attention += hidden;
  if (model.qk_norm) attention += 2 * number(model.head_dim);
  if (model.qk_norm_all_heads) attention += q + kv;
  if (model.sinks) attention += number(model.num_attention_heads);
  double norms = 0;
  for (const std::string* norm :
       {&model.norms.before_attention, &model.norms.after_attention, &model.norms.before_mlp, &model.norms.after_mlp}) {
    if (!norm->empty()) norms += hidden;
  }
  const double dense_mlp = 3 * hidden * inner + (model.mlp_bias ? 2 * inner + hidden : 0);
  const double expert_inner = number(experts.intermediate_size);
  const double expert_biases =
      (experts.has_biases() ? 2 * expert_inner + hidden : 0) + (experts.router_bias.empty() ? 0 : 1);
  const double one_expert = 3 * hidden * expert_inner + hidden + expert_biases;  // and its row of the router
  const double sparse_mlp = number(experts.num_experts) * one_expert +
                            3 * hidden * number(experts.shared_intermediate_size) + (experts.shared_gate ? hidden : 0);
  const double tables = model.tie_word_embeddings || model.is_reward_model ? 1 : 2;
  const double layers = number(model.num_hidden_layers), linear = number(model.delta.count());
  return layers * norms + (layers - linear) * attention + linear * delta_parameters_of(model) +
         (layers - sparse) * dense_mlp + sparse * sparse_mlp + tables * number(model.vocab_size) * hidden + hidden +
         (model.is_reward_model ? hidden : 0);
}

}  // namespace

std::string with_dtype(const std::string& text, const std::string& dtype) {
  using Json = nlohmann::ordered_json;
  Json object = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return text;
  const Json before = object;
  const auto replace = [&](Json& config) {
    for (const char* key : {"dtype", "torch_dtype"}) {
      if (config.contains(key)) config[key] = dtype;
    }
  };
  replace(object);
  object.erase("quantization_config");
  if (!object.contains("dtype") && !object.contains("torch_dtype")) object["torch_dtype"] = dtype;
  for (auto& [key, value] : object.items()) {
    if (value.is_object() && key.ends_with("_config")) replace(value);
  }
  return object == before ? text : object.dump(2) + "\n";
}

ModelConfig with_mtp(ModelConfig config, int64_t layers) {
  if (layers < 0 || layers > config.num_nextn_predict_layers) {
    throw ConfigError(fmt::format("mtp_num_layers is {}; this {} model has {} MTP layers ({})", layers,
                                  config.model_type, config.num_nextn_predict_layers,
                                  config.delta.count() > 0 ? "mtp_num_hidden_layers" : "num_nextn_predict_layers"));
  }
  config.mtp_layers = layers;
  if (layers > 0) std::erase(config.unused_tensors, "mtp.");
  return config;
}

std::string known_model_types() {
  std::vector<std::string> names;
  for (const Family* family : all_families()) names.emplace_back(family->model_type);
  return fmt::format("{}", fmt::join(names, ", "));
}

// Exact in a double: at most 2^50.
int64_t parameter_count(const ModelConfig& config) { return static_cast<int64_t>(parameters_of(config)); }

ModelConfig parse_model_config(std::string_view given, const std::string& file) {
  const json document = parse(given, file);
  const ConfigReader whole(document, file);
  if (const Family* part = part_of(whole)) {
    const std::string text = text_model(document, whole, *part).dump(2) + "\n";
    ModelConfig model = parse_model_config(text, fmt::format("{}: text_config", file));
    for (const char* other : {"vision_tower.", "multi_modal_projector.", "visual."}) {
      model.unused_tensors.insert(model.unused_tensors.end(), {other, std::string("model.") + other});
    }
    model.whole_text = given;
    if (part->vision != nullptr) model.vision = read_vision_config(whole, *part->vision, model);
    return model;
  }
  const bool is_module = whole.text("model_type", "") == kModuleType;
  ModelConfig model = is_module ? read_module_config(whole) : read_model(whole, family_of(whole));
  model.text = given;
  return model;
}

ModelConfig read_model(const ConfigReader& read, const Family& family) {
  ModelConfig model;
  model.model_type = family.model_type;
  model.architecture = family.architecture;
  read_sizes(read, family, model);
  read_numbers(read, model);
  read_reward_model(read, family, model);
  refuse_the_rest(read, family, model);
  read_quantization(read, model);
  model.rope = read_rope(read, family, model);
  if (family.default_window_rope_theta > 0) model.window_rope = read_window_rope(read, family, model);
  family.describe(read, model);
  if (const double count = parameters_of(model); count > static_cast<double>(kMaxParameters)) {
    read.refuse(fmt::format("describes a model of {:g} parameters; the limit is {}", count, kMaxParameters));
  }
  return model;
}

// Batches are padded, and transformers finds the last token before the padding by pad_token_id.
ModelConfig reward_model_config(const ModelConfig& config) {
  if (config.is_reward_model) return config;
  using Json = nlohmann::ordered_json;
  Json object = Json::parse(config.text);
  const auto families = all_families();
  const auto family = std::ranges::find(families, config.model_type, &Family::model_type);
  const std::string architecture = scoring_architecture(**family);
  if (architecture.empty()) {
    throw ConfigError(
        fmt::format("stage rm cannot be used with model_type {}: transformers has no class for classifying sequences "
                    "with it, so that "
                    "nothing else could read the reward model; start from a model of another family",
                    config.model_type));
  }
  object["architectures"] = {architecture};
  object["id2label"] = {{"0", "LABEL_0"}};
  object["label2id"] = {{"LABEL_0", 0}};
  object.erase("num_labels");
  const auto is_id = [&](const char* key) { return object.contains(key) && object[key].is_number_integer(); };
  if (!is_id("pad_token_id") && is_id("eos_token_id")) object["pad_token_id"] = object["eos_token_id"];
  return parse_model_config(object.dump(2) + "\n", "the config of a reward model");
}

ModelConfig read_model_config(const std::filesystem::path& path) {
  if (is_config_text(path.native())) return parse_model_config(path.native(), "model_config");
  std::error_code failure;
  const std::filesystem::path file = std::filesystem::is_directory(path, failure) ? path / "config.json" : path;
  const InputFile input(file.string(), "give a config.json or a folder with one");
  return parse_model_config(input.read(kMaxFileBytes, "a config"), file.string());
}

}  // namespace concord
