#include "core/models/adapters/adapter_delta.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/base/config_error.h"
#include "core/base/quoted.h"
#include "core/base/refused_combinations.h"
#include "core/safetensors/decode.h"
#include "core/safetensors/encode.h"

namespace concord {
namespace {

using safetensors::Weights;

// |count| elements of |tensor| from |first|.
std::vector<double> numbers(const Weights::Tensor& tensor, int64_t first, int64_t count) {
  const int64_t size = size_of(tensor.info->dtype);
  std::vector<std::byte> bytes(static_cast<size_t>(count * size));
  tensor.file->read(*tensor.info, static_cast<uint64_t>(first * size), bytes);
  std::vector<double> values(static_cast<size_t>(count));
  safetensors::decode(bytes, tensor.info->dtype, values);
  return values;
}

double in_float32(double value) { return static_cast<double>(static_cast<float>(value)); }

[[noreturn]] void refuse(const Weights::Tensor& tensor, const std::string& why) {
  throw ConfigError(fmt::format("{}: tensor {} of {} {}", tensor.file->path(), quoted(tensor.info->name),
                                safetensors::shape_text(tensor.info->shape), why));
}

}  // namespace

AdapterDelta::AdapterDelta(const std::string& folder) : weights_(folder, kAdapterStem) {
  const AdapterModules modules(read_adapter_config(folder));
  if (!modules.config().merged_adapters.empty()) {
    throw ConfigError(
        fmt::format("{} was trained on a base model with the adapters {} merged; merge these first, with `concord "
                    "merge` one after the other, and remove merged_adapters from {}",
                    folder, fmt::join(modules.config().merged_adapters, ", "), kAdapterConfigFile));
  }
  if (!modules.config().target_parameters.empty()) {
    throw ConfigError(refusal_message(Refused::merge_of_parameters, fmt::format("merging {}, an adapter with "
                                                                                "target_parameters,",
                                                                                folder)));
  }
  const std::string prefix = kAdapterPrefix, a_end = ".lora_A.weight", b_end = ".lora_B.weight",
                    m_end = ".lora_magnitude_vector";
  const bool is_dora = modules.config().use_dora;
  for (const auto& [view, tensor] : weights_.tensors()) {
    const std::string name(view);
    const bool is_a = name.ends_with(a_end);
    const std::string own = name.starts_with(prefix) ? name.substr(prefix.size()) : "";
    if (!is_a && !name.ends_with(b_end) && modules.saves(own.substr(0, own.rfind('.')))) {
      whole_.emplace(own, tensor);
      continue;
    }
    if (is_dora && name.starts_with(prefix) && name.ends_with(m_end)) continue;  // read together with A and B
    if (!name.starts_with(prefix) || !(is_a || name.ends_with(b_end)) || tensor.info->shape.size() != 2 ||
        !safetensors::is_weight_type(tensor.info->dtype)) {
      refuse(tensor, "is not a lora_A.weight or lora_B.weight of a linear layer, so it cannot be merged");
    }
    const std::string module = name.substr(prefix.size(), name.size() - prefix.size() - a_end.size());
    const Weights::Tensor* other = weights_.find(prefix + module + (is_a ? b_end : a_end));
    if (other == nullptr) refuse(tensor, fmt::format("has no matching {}", is_a ? "lora_B" : "lora_A"));
    if (!is_a) continue;
    const std::optional<LowRankShape> shape = modules.find(module);
    if (!shape) refuse(tensor, fmt::format("belongs to a module that is not a target in {}", kAdapterConfigFile));
    Pair pair{tensor, *other, shape->scale};
    if (other->info->shape.size() != 2 || other->info->shape[1] != shape->rank || pair.rank() != shape->rank) {
      refuse(tensor, fmt::format("and its lora_B do not have the rank {} of {}", shape->rank, kAdapterConfigFile));
    }
    if (is_dora) {
      const Weights::Tensor* magnitude = weights_.find(prefix + module + m_end);
      if (magnitude == nullptr || magnitude->info->shape != std::vector<int64_t>{pair.outputs()} ||
          !safetensors::is_weight_type(magnitude->info->dtype)) {
        refuse(tensor, fmt::format("has no matching lora_magnitude_vector of [{}], which DoRA needs", pair.outputs()));
      }
      pair.magnitude = *magnitude;
    }
    pairs_.emplace(module + ".weight", pair);
  }
}

const Weights::Tensor* AdapterDelta::replacement(const std::string& weight) const {
  const auto found = whole_.find(weight);
  return found == whole_.end() ? nullptr : &found->second;
}

void AdapterDelta::check(const Weights& model) const {
  for (const auto& [weight, tensor] : whole_) {
    const Weights::Tensor* found = model.find(weight);
    if (found != nullptr && found->info->shape == tensor.info->shape &&
        safetensors::is_weight_type(tensor.info->dtype)) {
      continue;
    }
    refuse(tensor,
           fmt::format("cannot replace {} of {}; is it the adapter of another model?", quoted(weight), model.path()));
  }
  for (const auto& [weight, pair] : pairs_) {
    const Weights::Tensor* found = model.find(weight);
    if (found == nullptr) {
      throw ConfigError(fmt::format("{}: has no tensor {}, which {} changes; is it the adapter of another model?",
                                    model.path(), quoted(weight), weights_.path()));
    }
    if (found->info->shape != std::vector<int64_t>{pair.outputs(), pair.inputs()}) {
      refuse(*found, fmt::format("cannot be merged with {} for [{}, {}]; is it the adapter of another model?",
                                 weights_.path(), pair.outputs(), pair.inputs()));
    }
    if (!safetensors::is_weight_type(found->info->dtype)) {
      refuse(*found, fmt::format("has type {}; must be F64, F32, F16 or BF16", to_string(found->info->dtype)));
    }
  }
}

std::vector<double> AdapterDelta::Cursor::row_factors(const std::string& weight, const Weights::Tensor& source,
                                                      int64_t first_row, int64_t end_row) {
  const auto found = delta_->pairs_.find(weight);
  if (found == delta_->pairs_.end() || !found->second.magnitude) return {};
  const int64_t inputs = found->second.inputs();
  std::vector<double> factors = numbers(*found->second.magnitude, first_row, end_row - first_row);
  std::vector<double> change(static_cast<size_t>(inputs));
  for (int64_t row = first_row; row < end_row; ++row) {
    const std::vector<double> own = numbers(source, row * inputs, inputs);
    read(weight, row * inputs, change);
    double squares = 0;
    for (size_t i = 0; i < own.size(); ++i) squares += (own[i] + change[i]) * (own[i] + change[i]);
    double& factor = factors[static_cast<size_t>(row - first_row)];
    factor = in_float32(factor / in_float32(std::sqrt(squares)));
  }
  return factors;
}

bool AdapterDelta::Cursor::read_any(const std::string& weight, int64_t first, std::span<double> out) {
  const Weights::Tensor* whole = delta_->replacement(weight);
  if (whole == nullptr) return read(weight, first, out);
  std::ranges::copy(numbers(*whole, first, static_cast<int64_t>(out.size())), out.begin());
  return true;
}

bool AdapterDelta::Cursor::read(const std::string& weight, int64_t first, std::span<double> out) {
  const auto found = delta_->pairs_.find(weight);
  if (found == delta_->pairs_.end()) return false;
  const Pair& pair = found->second;
  const int64_t rank = pair.rank(), inputs = pair.inputs(), last = first + static_cast<int64_t>(out.size());
  if (weight_ != weight) a_ = numbers(pair.a, 0, rank * inputs);
  weight_ = weight;
  const int64_t first_row = first / inputs, end_row = (last + inputs - 1) / inputs;
  const std::vector<double> b = numbers(pair.b, first_row * rank, (end_row - first_row) * rank);
  std::fill(out.begin(), out.end(), 0);
  for (int64_t row = first_row; row < end_row; ++row) {
    const int64_t begin = std::max(first, row * inputs), end = std::min(last, (row + 1) * inputs);
    double* const to = out.data() + (begin - first);
    for (int64_t k = 0; k < rank; ++k) {
      const double factor = b[static_cast<size_t>((row - first_row) * rank + k)];
      const double* const from = a_.data() + k * inputs + (begin - row * inputs);
      for (int64_t i = 0; i < end - begin; ++i) to[i] += factor * from[i];
    }
  }
  for (double& value : out) value = in_float32(in_float32(value) * pair.scale);
  return true;
}

}  // namespace concord
