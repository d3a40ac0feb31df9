// Settings that FlagScale adds to Megatron-LM's for jobs on several kinds of devices (docs/mixed-platforms.md). A mesh
// of FlagScale's is a number of consecutive pipeline stages.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "core/base/quoted.h"
#include "trainer/arguments/foreign/conversions.h"
#include "trainer/arguments/foreign/rows.h"
#include "trainer/arguments/values.h"

namespace concord {
namespace {

using Numbers = std::vector<int64_t>;

Numbers positive_numbers(const ArgumentValue& value) {
  Numbers numbers;
  for (const std::string& item : items_of(value)) {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), number);
    if (error != std::errc() || end != item.data() + item.size() || number < 1) {
      throw Refusal{fmt::format("has {}, but must be whole numbers >= 1", quoted(item))};
    }
    numbers.push_back(number);
  }
  return numbers;
}

bool all_equal(const Numbers& numbers) {
  return std::ranges::adjacent_find(numbers, std::not_equal_to()) == numbers.end();
}

// n0 value0 n1 value1 ...: the value of each of n0 + n1 + ... data-parallel replicas.
Numbers per_replica(const ArgumentValue& value) {
  constexpr int64_t kMaxReplicas = 1 << 20;
  const Numbers pairs = positive_numbers(value);
  if (pairs.empty() || pairs.size() % 2 != 0) {
    throw Refusal{"must be pairs of numbers: how many replicas, and the value of each of them"};
  }
  Numbers values;
  for (size_t i = 0; i < pairs.size(); i += 2) {
    if (pairs[i] > kMaxReplicas) throw Refusal{fmt::format("has {} replicas; at most {}", pairs[i], kMaxReplicas)};
    values.insert(values.end(), static_cast<size_t>(pairs[i]), pairs[i + 1]);
  }
  return values;
}

// tp, cp, ep, dp and pp of a mesh.
constexpr size_t kMeshSizes = 5;
enum MeshSize : size_t { mesh_tp, mesh_cp, mesh_ep, mesh_dp, mesh_pp };

// Returns one of the sizes for each mesh.
Numbers sizes_of_meshes(const Numbers& meshes, MeshSize which) {
  Numbers sizes;
  for (size_t i = which; i < meshes.size(); i += kMeshSizes) sizes.push_back(meshes[i]);
  return sizes;
}

Numbers read_meshes(const ArgumentValue& value) {
  Numbers meshes = positive_numbers(value);
  if (!meshes.empty() && meshes.size() % kMeshSizes == 0) return meshes;
  throw Refusal{fmt::format("has {} numbers; must be five for each mesh: tp, cp, ep, dp, pp", meshes.size())};
}

int64_t size_of_all(const Numbers& meshes, MeshSize which, const char* name) {
  const Numbers sizes = sizes_of_meshes(meshes, which);
  if (all_equal(sizes)) return sizes.front();
  throw Refusal{
      fmt::format("has meshes of different {} sizes ({}); pipeline stages can have different platforms and "
                  "numbers of layers, but only one layout: give all meshes the same tp, cp, ep and dp",
                  name, fmt::join(sizes, ", "))};
}

void check_stages(int64_t stages, const TrainingArguments& arguments) {
  const int64_t given = arguments.job.pipeline_model_parallel_size;
  if (given == 1 || given == stages) return;
  throw Refusal{
      fmt::format("has {} pipeline stages, but pipeline_model_parallel_size is {}; they must be equal", stages, given)};
}

Conversion process_meshes(const ArgumentValue& value, const TrainingArguments& arguments, const ForeignValues&) {
  const Numbers meshes = read_meshes(value);
  const Numbers stages = sizes_of_meshes(meshes, mesh_pp);
  const int64_t all_stages = std::accumulate(stages.begin(), stages.end(), int64_t{0});
  check_stages(all_stages, arguments);
  size_of_all(meshes, mesh_dp, "dp");
  Conversion conversion;
  const auto set = [&](const char* name, int64_t size) {
    conversion.arguments.emplace_back(name, std::to_string(size));
  };
  set("tensor_model_parallel_size", size_of_all(meshes, mesh_tp, "tp"));
  set("context_parallel_size", size_of_all(meshes, mesh_cp, "cp"));
  set("expert_model_parallel_size", size_of_all(meshes, mesh_ep, "ep"));
  set("pipeline_model_parallel_size", all_stages);
  return conversion;
}

// The platform of a type of device, as FlagScale's users call them.
std::string platform_of_type(const std::string& type) {
  constexpr std::string_view kNvidia[] = {"nvidia", "gpu",  "v100", "t4",   "a10",  "a30",  "a40",
                                          "a100",   "a800", "h100", "h800", "h200", "h20",  "l4",
                                          "l20",    "l40s", "l40",  "b100", "b200", "gb200"};
  constexpr std::string_view kAscend[] = {"npu", "910", "ascend910", "atlas"};
  std::string name = type;
  std::ranges::transform(name, name.begin(), [](unsigned char letter) { return std::tolower(letter); });
  if (name == "cpu" || name == "cuda" || name == "ascend") return name;
  if (std::ranges::find(kNvidia, name) != std::ranges::end(kNvidia)) return "cuda";
  if (std::ranges::any_of(kAscend, [&](std::string_view each) { return name.starts_with(each); })) return "ascend";
  throw Refusal{
      fmt::format("has {}, whose platform is not known; give platform instead, a name for each of equal parts "
                  "of the ranks: cuda,ascend",
                  quoted(type))};
}

// All stages have the same number of ranks, so a mesh of several stages is several of the equal parts.
Conversion device_types(const ArgumentValue& value, const TrainingArguments&, const ForeignValues& given) {
  const std::vector<std::string> types = items_of(value);
  Numbers stages(types.size(), 1);
  if (const auto meshes = given.find("hetero_process_meshes"); meshes != given.end()) {
    stages = sizes_of_meshes(read_meshes(meshes->second), mesh_pp);
  }
  if (types.empty() || types.size() != stages.size()) {
    throw Refusal{fmt::format("has {} types; must be one for each of {} meshes", types.size(), stages.size())};
  }
  int64_t unit = 0;
  for (const int64_t count : stages) unit = std::gcd(unit, count);
  std::vector<std::string> platforms;
  for (size_t i = 0; i < types.size(); ++i)
    platforms.insert(platforms.end(), static_cast<size_t>(stages[i] / unit), platform_of_type(types[i]));
  const bool is_one = std::ranges::adjacent_find(platforms, std::not_equal_to()) == platforms.end();
  return {{{"platform", is_one ? platforms.front() : fmt::format("{}", fmt::join(platforms, ","))}}};
}

Conversion layout_of_layers(const Numbers& layers, const TrainingArguments& arguments) {
  check_stages(std::ssize(layers), arguments);
  std::string layout = "E,";
  for (size_t i = 0; i < layers.size(); ++i) layout += fmt::format("{}t*{}", i == 0 ? "" : "|", layers[i]);
  if (const int64_t mtp = arguments.model_options.mtp.num_layers; mtp > 0) layout += fmt::format(",m*{}", mtp);
  return {{{"pipeline_model_parallel_layout", layout + ",L"},
           {"pipeline_model_parallel_size", std::to_string(layers.size())}}};
}

Conversion layer_split(const ArgumentValue& value, const TrainingArguments& arguments, const ForeignValues&) {
  const Numbers layers = positive_numbers(value);
  if (layers.empty()) throw Refusal{"must be the number of layers of each pipeline stage"};
  return layout_of_layers(layers, arguments);
}

// n0 layers .. n1 layers ..: n0 stages and their layers, n1 stages and theirs.
Conversion pipeline_stages(const ArgumentValue& value, const TrainingArguments& arguments, const ForeignValues&) {
  const Numbers numbers = positive_numbers(value);
  Numbers layers;
  for (size_t i = 0; i < numbers.size(); i += 1 + static_cast<size_t>(numbers[i])) {
    const size_t first = i + 1, count = static_cast<size_t>(numbers[i]);
    if (count > numbers.size() - first) {
      throw Refusal{
          fmt::format("has {} stages, but only {} numbers of layers after it", count, numbers.size() - first)};
    }
    layers.insert(layers.end(), numbers.begin() + static_cast<std::ptrdiff_t>(first),
                  numbers.begin() + static_cast<std::ptrdiff_t>(first + count));
  }
  if (layers.empty()) throw Refusal{"must be a number of stages and the layers of each of them, repeatedly"};
  return layout_of_layers(layers, arguments);
}

Conversion micro_batches_per_replica(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  const Numbers counts = per_replica(value);
  if (all_equal(counts)) return {};
  return {{{"heterogeneous_split", fmt::format("{}", fmt::join(counts, ","))}}};
}

Conversion micro_batch_size_per_replica(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  const Numbers sizes = per_replica(value);
  if (all_equal(sizes)) return {{{"per_device_train_batch_size", std::to_string(sizes.front())}}};
  throw Refusal{
      fmt::format("has {}, but all micro-batches have the same size; replicas can have different numbers of "
                  "them: give num_micro_batches_per_dp, or heterogeneous_split",
                  fmt::join(sizes, ", "))};
}

Conversion expert_tensor_sizes(const ArgumentValue& value, const TrainingArguments&, const ForeignValues&) {
  const Numbers sizes = positive_numbers(value);
  if (!sizes.empty() && all_equal(sizes)) return {{{"expert_tensor_parallel_size", std::to_string(sizes.front())}}};
  throw Refusal{"must be the same size for all meshes"};
}

}  // namespace

std::vector<ForeignSetting> flagscale_settings() {
  constexpr bool kList = true;
  ForeignRows rows(ForeignProgram::flagscale);
  rows.convert(
          "hetero_process_meshes",
          {"tensor_, context_, expert_ and pipeline_model_parallel_size, if all meshes have the same tp, cp, ep and dp",
           process_meshes, kList})
      .convert("hetero_device_types", {"platform: a name for each of equal parts of the ranks", device_types, kList})
      .convert("hetero_pipeline_layer_split", {"pipeline_model_parallel_layout", layer_split, kList})
      .convert("hetero_pipeline_stages", {"pipeline_model_parallel_layout", pipeline_stages, kList})
      .convert("num_micro_batches_per_dp", {"heterogeneous_split", micro_batches_per_replica, kList})
      .convert("micro_batch_size_per_dp",
               {"per_device_train_batch_size, if all are the same", micro_batch_size_per_replica, kList})
      .convert("hetero_micro_batch_sizes", {"likewise", micro_batch_size_per_replica, kList})
      .convert("expert_tensor_parallel_size_per_process_mesh",
               {"expert_tensor_parallel_size, if all are the same", expert_tensor_sizes, kList});
  rows.no_effect("platform, or CONCORD_PLATFORM of each rank, says where ranks run",
                 {"enable_hetero", "hetero_mode", "hetero_current_device_type"});
  rows.no_effect("ranks on different platforms communicate over host memory, others over their own collectives",
                 {"hetero_use_cpu_communication"});
  rows.refuse(
      "recompute_*_per_stage_micro_batch", {},
      "recomputation is the same for all stages and micro-batches; use recompute_granularity, recompute_method and "
      "recompute_num_layers");
  return rows.rows();
}

}  // namespace concord
