#include "core/ops/attention/rope_angles.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "core/base/config_error.h"

namespace concord {
namespace {

using at::Tensor;

double required(const RopeSettings& settings, const char* name, std::optional<double> value) {
  if (!value)
    throw ConfigError(fmt::format("rope_type {} needs {}, which is missing", name_of(settings.rope_type), name));
  if (!(*value > 0))
    throw ConfigError(
        fmt::format("rope_type {}: {} is {:g}; must be positive", name_of(settings.rope_type), name, *value));
  return *value;
}

double required(const RopeSettings& settings, const char* name, int64_t value) {
  return required(settings, name, value == 0 ? std::nullopt : std::optional(static_cast<double>(value)));
}

int64_t rotary_dim(const RopeSettings& settings) {
  const auto dim = static_cast<int64_t>(static_cast<double>(settings.head_dim) * settings.partial_rotary_factor);
  if (dim < 2 || dim % 2 != 0 || dim > settings.head_dim) {
    throw ConfigError(fmt::format(
        "rope rotates pairs of a head: head_dim {} with partial_rotary_factor {:g} gives {}; must be even and >= 2",
        settings.head_dim, settings.partial_rotary_factor, dim));
  }
  if (!(settings.rope_theta > 0))
    throw ConfigError(fmt::format("rope_theta is {:g}; must be positive", settings.rope_theta));
  return dim;
}

// 0, 2/dim, 4/dim, ... in fp32.
Tensor exponents(int64_t dim) { return at::arange(0, dim, 2, at::kLong).to(at::kFloat) / dim; }

// base^(2i/dim)
Tensor wavelengths(double base, int64_t dim) { return at::pow(at::Scalar(base), exponents(dim)); }

Tensor plain(double base, int64_t dim) { return at::reciprocal(wavelengths(base, dim)); }

RopeFrequencies linear(const RopeSettings& settings) {
  return {plain(settings.rope_theta, rotary_dim(settings)) / required(settings, "factor", settings.factor)};
}

// transformers has the length as a tensor here, so the base is an fp32 number; up to max_position_embeddings it keeps
// the initial values, computed with the length as a Python integer.
RopeFrequencies dynamic(const RopeSettings& settings, int64_t length) {
  const int64_t dim = rotary_dim(settings);
  if (dim == 2) throw ConfigError("rope_type dynamic divides by the number of rotary dimensions - 2, which is 0 here");
  const double factor = required(settings, "factor", settings.factor);
  const double most = required(settings, "max_position_embeddings", settings.max_position_embeddings);
  const double power = static_cast<double>(dim) / static_cast<double>(dim - 2);
  if (length <= settings.max_position_embeddings) {
    return {plain(settings.rope_theta * std::pow(factor * most / most - (factor - 1), power), dim)};
  }
  const Tensor tokens = at::scalar_tensor(length, at::kLong);
  const Tensor base = settings.rope_theta * ((factor * tokens / most) - (factor - 1)).pow(power);
  return {at::reciprocal(at::pow(base, exponents(dim)))};
}

RopeFrequencies llama3(const RopeSettings& settings) {
  const Tensor inverse = plain(settings.rope_theta, rotary_dim(settings));
  const double factor = required(settings, "factor", settings.factor);
  const double low = required(settings, "low_freq_factor", settings.low_freq_factor);
  const double high = required(settings, "high_freq_factor", settings.high_freq_factor);
  const double original =
      required(settings, "original_max_position_embeddings", settings.original_max_position_embeddings);
  if (!(high > low)) {
    throw ConfigError(
        fmt::format("rope_type llama3: high_freq_factor {:g} must be greater than low_freq_factor {:g}", high, low));
  }
  const Tensor wave = 2 * std::numbers::pi / inverse;
  const Tensor scaled = at::where(wave > original / low, inverse / factor, inverse);
  const Tensor smooth = (original / wave - low) / (high - low);
  const Tensor between = (1 - smooth) * scaled / factor + smooth * scaled;
  const Tensor is_between = (wave < original / high).logical_not() * (wave > original / low).logical_not();
  return {at::where(is_between, between, scaled)};
}

double yarn_attention_factor(const RopeSettings& settings, double factor) {
  if (settings.attention_factor) return *settings.attention_factor;
  const auto scale = [factor](double m) { return factor <= 1 ? 1.0 : 0.1 * m * std::log(factor) + 1.0; };
  if (settings.mscale.value_or(0) != 0 && settings.mscale_all_dim.value_or(0) != 0) {
    return scale(*settings.mscale) / scale(*settings.mscale_all_dim);
  }
  return scale(1);
}

// Peng et al., "YaRN: efficient context window extension of large language models", 2023.
RopeFrequencies yarn(const RopeSettings& settings) {
  const int64_t dim = rotary_dim(settings);
  const double original =
      required(settings, "original_max_position_embeddings", settings.original_max_position_embeddings);
  const double factor =
      settings.factor ? required(settings, "factor", settings.factor)
                      : required(settings, "max_position_embeddings", settings.max_position_embeddings) / original;
  const double beta_fast = required(settings, "beta_fast", std::optional(settings.beta_fast));
  const double beta_slow = required(settings, "beta_slow", std::optional(settings.beta_slow));
  // Returns the dimension with |rotations| full rotations over the original length.
  const auto dimension = [&](double rotations) {
    return static_cast<double>(dim) * std::log(original / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(settings.rope_theta));
  };
  double low = dimension(beta_fast);
  double high = dimension(beta_slow);
  if (settings.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) high += 0.001;
  const Tensor ramp = ((at::arange(dim / 2, at::kFloat) - low) / (high - low)).clamp(0, 1);
  const Tensor waves = wavelengths(settings.rope_theta, dim);
  const Tensor kept = 1 - ramp;
  return {at::reciprocal(factor * waves) * (1 - kept) + at::reciprocal(waves) * kept,
          yarn_attention_factor(settings, factor)};
}

// Returns the axis of each of |count| frequencies. Interleaved ones are row, column, time in turns, starting with time,
// as long as the row's and the column's sections last; the rest are time.
std::vector<int64_t> axes_of(const RopeSettings& settings, int64_t count) {
  const std::vector<int64_t>& section = settings.mrope_section;
  int64_t sum = 0;
  for (const int64_t size : section) sum += size;
  if (section.size() != 3 || (!settings.mrope_interleaved && sum != count)) {
    throw ConfigError(
        fmt::format("mrope_section [{}] must have three numbers, for time, rows and columns, which add up to {}, half "
                    "of the rotated part of a head",
                    fmt::join(section, ", "), count));
  }
  std::vector<int64_t> axes(static_cast<size_t>(count), 0);
  for (int64_t i = 0; i < count; ++i) {
    int64_t& axis = axes[static_cast<size_t>(i)];
    if (settings.mrope_interleaved) {
      const int64_t turn = i % 3;
      if (turn != 0 && i < 3 * section[static_cast<size_t>(turn)]) axis = turn;
    } else {
      axis = i < section[0] ? 0 : i < section[0] + section[1] ? 1 : 2;
    }
  }
  return axes;
}

}  // namespace

RopeFrequencies rope_frequencies(const RopeSettings& settings, int64_t length) {
  const at::NoGradGuard no_grad;
  switch (settings.rope_type) {
    case RopeType::linear: return linear(settings);
    case RopeType::dynamic: return dynamic(settings, length);
    case RopeType::llama3: return llama3(settings);
    case RopeType::yarn: return yarn(settings);
    case RopeType::plain: break;
  }
  return {plain(settings.rope_theta, rotary_dim(settings))};
}

RopeAngles rope_angles(const RopeFrequencies& frequencies, const at::Tensor& positions) {
  if (!positions.defined() || !c10::isIntegralType(positions.scalar_type(), /*includeBool=*/false)) {
    throw ConfigError("rope positions must be integers, one per token");
  }
  const at::NoGradGuard no_grad;
  const Tensor angles = positions.to(at::kFloat).unsqueeze(-1) * frequencies.inverse.to(positions.device());
  return {angles.cos() * frequencies.attention_factor, angles.sin() * frequencies.attention_factor};
}

RopeAngles mrope_angles(const RopeFrequencies& frequencies, const RopeSettings& settings, const at::Tensor& positions) {
  if (!positions.defined() || positions.dim() < 2 || positions.size(0) != 3 || positions.scalar_type() != at::kLong) {
    throw ConfigError("rope positions on three axes must be integers [3, ...], one per axis and token");
  }
  const at::NoGradGuard no_grad;
  const Tensor axes = at::tensor(axes_of(settings, frequencies.inverse.size(0)), at::kLong).to(positions.device());
  const Tensor of_each = positions.movedim(0, -1).index_select(-1, axes).to(at::kFloat);
  const Tensor angles = of_each * frequencies.inverse.to(positions.device());
  return {angles.cos() * frequencies.attention_factor, angles.sin() * frequencies.attention_factor};
}

}  // namespace concord
