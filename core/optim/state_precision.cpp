#include "core/optim/state_precision.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/base/code_map.h"
#include "core/base/config_error.h"

namespace concord {
namespace {

// A moment x decays to d x. Neighbouring bf16 numbers in [1, 2] differ by 2^-7, so d x is rounded to a smaller number
// only if (1 - d) x > 2^-8, and for all x in (1, 2] if 1 - d >= 2^-8. Other numbers are these times a power of two.
constexpr double kMaxBf16Decay = 1 - 0x1p-8;

void check_decay(std::string_view dtype, StateType type, std::string_view name, double decay) {
  if (type != StateType::bf16 || decay <= kMaxBf16Decay) return;
  throw ConfigError(
      fmt::format("{} is bf16 and {} is {:g}, but a bf16 moment only decays if {} is <= {:g}: smaller changes are "
                  "rounded away; use {} 0.99 or less, or {} fp32",
                  dtype, name, decay, name, kMaxBf16Decay, name, dtype));
}

double bytes_of(StateType type) {
  switch (type) {
    case StateType::fp32: return 4;
    case StateType::bf16: return 2;
    default: return 1 + 4.0 / kStateBlock;
  }
}

}  // namespace

StateType state_type(const StatePrecision& precision, std::string_view key) {
  if (key == "exp_avg_sq") return precision.exp_avg_sq_dtype;
  if (key == "main" || key == "ema") return StateType::fp32;
  return precision.exp_avg_dtype;  // first moments: exp_avg, momentum, momentum_buffer
}

double StatePlan::bytes() const {
  double bytes = 0;
  for (const Tensor& tensor : tensors) bytes += bytes_of(tensor.type);
  return bytes;
}

StatePlan plan_state(const OptimizerOptions& options, bool has_main) {
  std::vector<std::string> keys;
  switch (options.optimizer) {
    case OptimizerType::sgd: keys = {"momentum"}; break;
    case OptimizerType::lion: keys = {"exp_avg"}; break;
    default: keys = {"exp_avg", "exp_avg_sq"};
  }
  if (has_main) keys.emplace_back("main");
  if (options.ema_decay > 0) keys.emplace_back("ema");
  StatePlan plan;
  for (std::string& key : keys) plan.tensors.push_back({key, state_type(options.precision, key)});
  return plan;
}

std::string to_text(const StatePlan& plan) {
  std::string text;
  for (const StatePlan::Tensor& tensor : plan.tensors) {
    text +=
        fmt::format("{}{} {} {:g}", text.empty() ? "" : " + ", tensor.key, name_of(tensor.type), bytes_of(tensor.type));
  }
  return text;
}

bool takes_blocks(std::span<const int64_t> elements) {
  constexpr int64_t kMinElements = 4096;
  return std::ranges::all_of(elements, [](int64_t n) { return n >= kMinElements && n % kStateBlock == 0; });
}

int64_t state_alignment(const StatePrecision& precision) { return precision.has_blocks() ? kStateBlock : 0; }

void check_state_precision(const OptimizerOptions& options) {
  const auto [first, second] = options.precision;
  const bool is_muon = options.optimizer == OptimizerType::muon;
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
