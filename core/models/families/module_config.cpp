#include "core/models/families/module_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/config_error.h"

namespace concord {
namespace {

constexpr IntegerRange kAny{1, int64_t{1} << 40};
constexpr IntegerRange kTokens{1, (int64_t{1} << 31) - 1};
constexpr IntegerRange kParts{1, int64_t{1} << 16};
constexpr size_t kMaxDims = 8;

ModuleParameter read_parameter(const ConfigReader& all, const std::string& name, int64_t layers) {
  const ConfigReader read = all.object(name);
  ModuleParameter parameter{.name = name, .shape = read.integers("shape", kAny)};
  const auto dims = static_cast<int64_t>(parameter.shape.size());
  if (parameter.shape.empty() || parameter.shape.size() > kMaxDims) {
    all.refuse(name, fmt::format("must have a shape of 1 to {} dimensions", kMaxDims));
  }
  parameter.layer = read.integer("layer", {0, layers - 1});
  if (read.has("split")) parameter.split = read.integer("split", {0, dims - 1});
  parameter.partial_over_tp = read.flag("partial_over_tp", false);
  parameter.frozen = read.flag("frozen", false);
  return parameter;
}

}  // namespace

ModelConfig read_module_config(const ConfigReader& read) {
  ModelConfig model;
  model.model_type = kModuleType;
  const std::vector<std::string> names = read.texts("architectures");
  model.architecture = names.empty() ? "a module" : names.front();
  model.vocab_size = read.integer("vocab_size", kTokens);
  model.num_hidden_layers = read.integer("num_hidden_layers", kParts);
  model.max_position_embeddings = read.integer("max_position_embeddings", kAny);
  model.dtype = read.text(read.has("dtype") ? "dtype" : "torch_dtype", "float32");
  // Sizes of a transformer, which a module need not have.
  model.hidden_size = model.intermediate_size = model.num_attention_heads = model.num_key_value_heads = model.head_dim =
      1;
  model.windows.assign(static_cast<size_t>(model.num_hidden_layers), 0);
  const ConfigReader all = read.object("parameters");
  double elements = 0;
  for (const std::string& name : all.key_names()) {
    model.module.push_back(read_parameter(all, name, model.num_hidden_layers));
    double size = 1;
    for (const int64_t dim : model.module.back().shape) size *= static_cast<double>(dim);
    elements += size;
  }
  std::ranges::stable_sort(model.module, {}, &ModuleParameter::layer);
  if (model.module.empty()) read.refuse("parameters", "must name at least one");
  if (elements > static_cast<double>(kMaxParameters)) {
    read.refuse(fmt::format("describes a model of {:g} parameters; the limit is {}", elements, kMaxParameters));
  }
  return model;
}

std::vector<ParameterPlan> plan_module(const ModelConfig& config, const StageLayers& stage) {
  std::vector<ParameterPlan> plans;
  for (const ModuleParameter& each : config.module) {
    if (each.layer < stage.first_layer || each.layer >= stage.first_layer + stage.layers) continue;
    ParameterPlan plan{.spec = {.name = each.name, .replicated_over = {GroupKind::dp_cp}}, .init = constant_init(0)};
    for (size_t dim = 0; dim < each.shape.size(); ++dim) {
      plan.spec.dims.push_back({each.shape[dim]});
      if (each.split == static_cast<int64_t>(dim)) plan.spec.dims.back().cut = ShardAxis::tp;
    }
    if (!each.split) plan.spec.replicated_over.insert(plan.spec.replicated_over.begin(), GroupKind::tp);
    plan.partial_over_tp = each.partial_over_tp;
    plan.frozen = each.frozen;
    plans.push_back(std::move(plan));
  }
  return plans;
}

}  // namespace concord
