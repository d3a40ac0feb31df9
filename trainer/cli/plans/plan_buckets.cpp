#include "trainer/cli/plans/plan_buckets.h"

#include <fmt/core.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "core/base/config_error.h"
#include "core/base/files/input_file.h"
#include "core/base/parse_json.h"
#include "core/base/quoted.h"
#include "core/models/parameter_plan.h"
#include "core/optim/state_precision.h"

namespace concord {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxParametersBytes = 256 << 20;

// Concord's spelling, or Hugging Face's.
DType parse_dtype(const std::string& text, const std::string& where) {
  if (text == "f32" || text == "float32") return DType::kF32;
  if (text == "bf16" || text == "bfloat16") return DType::kBF16;
  if (text == "f16" || text == "float16") return DType::kF16;
  throw ConfigError(
      fmt::format("{}: dtype is {}; must be one of f32, bf16, f16 (float32, bfloat16, float16)", where, quoted(text)));
}

// Any other JSON number would be rounded or wrap around.
int64_t size_of_axis(const json& value, const std::string& where) {
  constexpr int64_t kMaxValue = std::numeric_limits<int64_t>::max();
  if (value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(kMaxValue))
    return value.get<int64_t>();
  throw ConfigError(fmt::format("{}: a size is {}; must be an integer from 0 to {}", where,
                                value.is_structured() ? value.type_name() : one_line(value.dump(-1, ' ', true)),
                                kMaxValue));
}

int64_t elements_of(const json& entry, const std::string& where) {
  if (entry.contains("elements")) return size_of_axis(entry.at("elements"), where);
  if (!entry.contains("shape")) throw ConfigError(fmt::format("{}: has neither \"elements\" nor \"shape\"", where));
  int64_t elements = 1;
  for (const json& size : entry.at("shape")) {
    if (__builtin_mul_overflow(elements, size_of_axis(size, where), &elements)) {
      throw ConfigError(fmt::format("{}: the shape has more than 2^63 elements", where));
    }
  }
  return elements;
}

using Chunks = std::vector<std::vector<PlannedParameter>>;

Chunks chunks_of_model(const BucketArguments& arguments, const RankLayout& layout, int64_t rank) {
  const ModelConfig config = read_model_config(arguments.model_config);
  const auto stages = assign_layers({.num_layers = config.num_hidden_layers, .pp = layout.pp(), .vpp = layout.vpp()});
  const ShardPlace place = shard_place(layout, rank);
  const DType dtype = arguments.dtype.empty() ? parse_dtype(config.dtype, arguments.model_config)
                                              : parse_dtype(arguments.dtype, "--dtype");
  Chunks chunks;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    if (static_cast<int64_t>(stage) % layout.pp() != layout.coordinates(rank).pp) continue;
    std::vector<PlannedParameter>& chunk = chunks.emplace_back();
    const ParameterPlanOptions options{
        .tp = layout.tp(), .ep = layout.ep(), .etp = layout.etp(), .sequence_parallel = arguments.sequence_parallel};
    for (const ParameterPlan& parameter : plan_parameters(config, stages[stage], options)) {
      int64_t elements = 1;
      for (const int64_t size : local_shape(parameter.spec, place)) elements *= size;
      const bool alone = parameter.shared_embedding && arguments.use_distributed_optimizer && layout.pp() > 1;
      const bool is_vector = parameter.spec.dims.size() < 2;
      chunk.push_back({parameter.spec.name, elements, dtype, parameter.expert, alone, is_vector});
    }
  }
  return chunks;
}

}  // namespace

std::vector<PlannedParameter> parse_parameters(const std::string& text, const std::string& file,
                                               const std::string& dtype) {
  const json list = parse_json(text, file);
  if (!list.is_array()) throw ConfigError(fmt::format("{} is not a JSON list of parameters", file));
  std::vector<PlannedParameter> parameters;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string where = fmt::format("{}: parameter {}", file, i);
    try {
      const json& entry = list[i];
      parameters.push_back({entry.at("name").get<std::string>(), elements_of(entry, where),
                            parse_dtype(entry.value("dtype", dtype), where), entry.value("expert", false), false,
                            entry.contains("shape") && entry.at("shape").size() < 2});
    } catch (const json::exception& error) {
      throw ConfigError(fmt::format("{}: {}; expected {{\"name\", \"shape\" or \"elements\", \"dtype\", \"expert\"}}",
                                    where, json_reason(error)));
    }
  }
  return parameters;
}

std::string buckets_text(const BucketArguments& arguments, const RankLayout& layout, int64_t rank, bool as_json) {
  if (arguments.model_config.empty() == arguments.parameters.empty()) {
    throw ConfigError("--buckets needs the parameters: give either --model FOLDER or --parameters FILE");
  }
  check_state_precision(arguments.optimizer);
  Chunks chunks;
  if (!arguments.model_config.empty()) {
    chunks = chunks_of_model(arguments, layout, rank);
  } else {
    chunks.push_back(parse_parameters(InputFile(arguments.parameters).read(kMaxParametersBytes, "a list of parameters"),
                                      arguments.parameters, arguments.dtype.empty() ? "bf16" : arguments.dtype));
  }
  std::string text;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const BucketPlan plan = plan_buckets(chunks[i], {.dp = layout.dp() * layout.cp(),
                                                     .edp = layout.edp(),
                                                     .bucket_elements = arguments.ddp_bucket_size,
                                                     .one_bucket = i > 0,
                                                     .distributed_optimizer = arguments.use_distributed_optimizer,
                                                     .alignment = state_alignment(arguments.optimizer.precision),
                                                     .fp32_grads = !arguments.grads_in_parameter_type});
    const StateOfType state = [&](DType parameter) -> ElementState {
      const StatePlan tensors = plan_state(arguments.optimizer, parameter != DType::kF32);
      return {tensors.bytes(), to_text(tensors)};
    };
    if (as_json) {
      text += fmt::format("{}{}", i > 0 ? "," : "[", to_json(plan, chunks[i], state));
    } else {
      text += fmt::format("chunk {} of rank {}\n{}", i, rank, to_text(plan, chunks[i], state));
    }
  }
  if (as_json) text.append("]\n");
  return text;
}

}  // namespace concord
