#include "core/optim/state_precision.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/base/code_map.h"
#include "core/base/config_error.h"

namespace concord {
namespace {

// A moment x decays to d x. Neighbouring bf16 numbers in [1, 2] differ by 2^-7, so d x is rounded to a smaller number
// only if (1 - d) x > 2^-8, and for all x in (1, 2] if 1 - d >= 2^-8. Other numbers are these times a power of two.
// Those of fp16 differ by 2^-10.
constexpr double kMaxBf16Decay = 1 - 0x1p-8, kMaxFp16Decay = 1 - 0x1p-11;

void check_decay(std::string_view dtype, StateType type, std::string_view name, double decay) {
  if (type != StateType::bf16 && type != StateType::fp16) return;
  const double most = type == StateType::bf16 ? kMaxBf16Decay : kMaxFp16Decay;
  if (decay <= most) return;
  throw ConfigError(
      fmt::format("{} is {} and {} is {:g}, but a moment in {} only decays if {} is <= {:.5g}: smaller changes are "
                  "rounded away; use {} {:g} or less, or {} fp32",
                  dtype, name_of(type), name, decay, name_of(type), name, most, name,
                  type == StateType::bf16 ? 0.99 : 0.999, dtype));
}

double bytes_per_element(const StatePlan::Tensor& tensor) {
  return static_cast<double>(tensor.bytes(kStateBlock)) / kStateBlock;
}

}  // namespace

StateType state_type(const StatePrecision& precision, std::string_view key) {
  if (key == "exp_avg_sq") return precision.exp_avg_sq_dtype;
  if (key == "ema") return StateType::fp32;
  return precision.exp_avg_dtype;  // first moments: exp_avg, momentum, momentum_buffer
}

std::string_view StatePlan::Tensor::type_name() const {
  return main == MainParamsType::fp32 ? name_of(type) : name_of(main);
}

int64_t StatePlan::Tensor::bytes(int64_t elements) const {
  constexpr int64_t kFloat = 4, kHalf = 2;
  const int64_t scales = elements / kStateBlock * kFloat;
  if (main == MainParamsType::bf16_stochastic_round) return 0;
  if (main != MainParamsType::fp32 || type == StateType::bf16) return elements * kHalf;
  if (type == StateType::fp32) return elements * kFloat;
  return (type == StateType::fp16 ? elements * kHalf : elements) + scales;
}

double StatePlan::bytes() const {
  double bytes = 0;
  for (const Tensor& tensor : tensors) bytes += bytes_per_element(tensor);
  return bytes;
}

StatePlan plan_state(const OptimizerOptions& options, bool has_main) {
  std::vector<std::string> keys;
  switch (options.optimizer) {
    case OptimizerType::sgd: keys = {"momentum"}; break;
    case OptimizerType::lion: keys = {"exp_avg"}; break;
    default: keys = {"exp_avg", "exp_avg_sq"};
  }
  StatePlan plan;
  for (const std::string& key : keys) plan.tensors.push_back({key, state_type(options.precision, key)});
  if (has_main) plan.tensors.push_back({"main", StateType::fp32, options.precision.main_params_dtype});
  if (options.ema_decay > 0) plan.tensors.push_back({"ema", StateType::fp32});
  return plan;
}

std::string to_text(const StatePlan& plan) {
  std::string text;
  for (const StatePlan::Tensor& tensor : plan.tensors) {
    text += fmt::format("{}{} {} {:g}", text.empty() ? "" : " + ", tensor.key, tensor.type_name(),
                        bytes_per_element(tensor));
  }
  return text;
}

bool takes_blocks(std::span<const int64_t> elements) {
  constexpr int64_t kMinElements = 4096;
  return std::ranges::all_of(elements, [](int64_t n) { return n >= kMinElements && n % kStateBlock == 0; });
}

int64_t state_alignment(const StatePrecision& precision) { return precision.has_blocks() ? kStateBlock : 0; }

void check_state_precision(const OptimizerOptions& options) {
  const StateType first = options.precision.exp_avg_dtype, second = options.precision.exp_avg_sq_dtype;
  const bool is_muon = options.optimizer == OptimizerType::muon;
  if (second == StateType::fp8) {
    throw ConfigError(
        "exp_avg_sq_dtype is fp8, which rounds second moments below 2e-6 of the largest in a block to 0; the update "
        "would "
        "divide by adam_epsilon alone; set exp_avg_sq_dtype to bf16, 8bit or fp32");
  }
  if (options.optimizer == OptimizerType::sgd) {
    check_decay("exp_avg_dtype", first, "sgd_momentum", options.sgd_momentum);
  } else if (options.optimizer == OptimizerType::lion) {
    check_decay("exp_avg_dtype", first, "adam_beta2", options.adam_beta2);
  } else {
    if (is_muon) check_decay("exp_avg_dtype", first, "muon_momentum", options.muon_momentum);
    check_decay("exp_avg_dtype", first, "adam_beta1", options.adam_beta1);
    check_decay("exp_avg_sq_dtype", second, "adam_beta2", options.adam_beta2);
  }
}

}  // namespace concord
