#include "core/models/nearest_family.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/config_error.h"
#include "core/base/nearest_name.h"
#include "core/checkpoint/hf_plan.h"
#include "core/models/families/family.h"
#include "core/models/parameter_plan.h"
#include "core/safetensors/index.h"

namespace concord {
namespace {

using Names = std::set<std::string>;

constexpr size_t kMaxNames = 8;  // names of a kind in the message

// Keys without an effect on the numbers that a model computes.
const Names kNeutral{"_name_or_path",
                     "auto_map",
                     "bos_token_id",
                     "chunk_size_feed_forward",
                     "dtype",
                     "eos_token_id",
                     "finetuning_task",
                     "id2label",
                     "is_decoder",
                     "label2id",
                     "output_attentions",
                     "output_hidden_states",
                     "pad_token_id",
                     "problem_type",
                     "pretraining_tp",
                     "return_dict",
                     "sep_token_id",
                     "torch_dtype",
                     "transformers_version",
                     "use_cache",
                     "cls_token_id",
                     "architectures",
                     "model_type"};

struct Attempt {
  const Family* family = nullptr;
  Names unknown = {};      // keys
  std::string error = {};  // empty: the family accepts the file
  ModelConfig model = {};
};

Attempt attempt(const ConfigReader& read, const Family& family) {
  Attempt made{.family = &family};
  Names asked;
  ConfigReader own = read;
  own.record(&asked);
  try {
    made.model = read_model(own, family);
  } catch (const ConfigError& error) {
    made.error = error.what();
  }
  for (const std::string& key : read.key_names()) {
    if (read.has(key) && !asked.contains(key) && !kNeutral.contains(key)) made.unknown.insert(key);
  }
  return made;
}

std::string list_text(const Names& names) {
  const auto end = std::next(names.begin(), static_cast<std::ptrdiff_t>(std::min(names.size(), kMaxNames)));
  const std::string more = names.size() > kMaxNames ? fmt::format(" and {} more", names.size() - kMaxNames) : "";
  return fmt::format("{}{}", fmt::join(names.begin(), end, ", "), more);
}

// "model.layers.7.mlp.experts.12.w1" -> "model.layers.N.mlp.experts.N.w1": once for all layers and experts.
std::string without_numbers(const std::string& name) {
  std::string result, part;
  for (size_t begin = 0; begin <= name.size(); begin += part.size() + 1) {
    part = name.substr(begin, name.find('.', begin) - begin);
    const bool is_number = !part.empty() && std::ranges::all_of(part, [](unsigned char c) { return std::isdigit(c); });
    result += (begin == 0 ? "" : ".") + (is_number ? "N" : part);
  }
  return result;
}

// Empty if there are no weights, or they are damaged.
Names tensors_in(const std::string& config_file) {
  Names names;
  try {
    const safetensors::Weights weights(std::filesystem::path(config_file).parent_path().string());
    for (const auto& [name, tensor] : weights.tensors()) names.insert(without_numbers(std::string(name)));
  } catch (const std::exception&) {
    names.clear();
  }
  return names;
}

Names tensors_of(const ModelConfig& model) {
  Names names;
  const StageLayers whole{.embedding = true, .layers = model.num_hidden_layers, .loss = true};
  for (const ParameterPlan& plan : plan_parameters(model, whole, {})) {
    for (const GlobalTensor& tensor : global_tensors(plan.spec)) names.insert(without_numbers(tensor.name));
  }
  return names;
}

Names difference(const Names& a, const Names& b) {
  Names result;
  std::ranges::set_difference(a, b, std::inserter(result, result.end()));
  return result;
}

std::vector<std::string> tensor_differences(const Attempt& nearest, const std::string& config_file) {
  const Names there = tensors_in(config_file);
  if (there.empty() || !nearest.error.empty()) return {};
  const Names own = tensors_of(nearest.model), extra = difference(there, own), missing = difference(own, there);
  std::vector<std::string> differences;
  if (!extra.empty()) differences.push_back(fmt::format("has no tensors {}", list_text(extra)));
  if (!missing.empty()) differences.push_back(fmt::format("needs the tensors {}", list_text(missing)));
  return differences;
}

}  // namespace

std::string nearest_family(const ConfigReader& read) {
  std::vector<Attempt> attempts;
  std::vector<std::string_view> names;
  for (const Family* family : all_families()) {
    attempts.push_back(attempt(read, *family));
    names.emplace_back(family->model_type);
  }
  const std::string by_name = nearest_name(read.text("model_type"), names);
  const auto comes_first = [&](const Attempt& a, const Attempt& b) {
    const auto rank = [&](const Attempt& each) {
      return std::tuple(each.family->model_type != by_name, !each.error.empty(), each.unknown.size());
    };
    return rank(a) < rank(b);
  };
  const Attempt& nearest = *std::ranges::min_element(attempts, comes_first);
  std::vector<std::string> differences;
  if (!nearest.unknown.empty()) differences.push_back("does not know " + list_text(nearest.unknown));
  for (std::string& each : tensor_differences(nearest, read.file())) differences.push_back(std::move(each));
  if (!nearest.error.empty()) differences.push_back(fmt::format("rejects the file ({})", nearest.error));
  return fmt::format("the nearest is {}{}{}", nearest.family->model_type, differences.empty() ? "" : ", which ",
                     fmt::join(differences, ", and "));
}

}  // namespace concord
