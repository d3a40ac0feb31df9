// AdamW on Ascend: torch_npu's kernel of libtorch's fused AdamW (CANN's ApplyAdamWV2), once for tensors that follow one
// another in memory. (torch_npu's npu_apply_adam_w copies tensors that are a part of a buffer, before and after.) The
// numbers of a call are the host's, so the factor of clipping is computed there, and a step whose norm or loss is not
// finite ends there. Other types than fp32 use the reference.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <vector>

#include "backends/ascend/torch/ops/dispatcher.h"
#include "backends/ascend/torch/ops/neighbours.h"

namespace concord::ascend::torch_side {
namespace {

using at::Tensor;
using at::TensorList;
using MaybeTensor = std::optional<Tensor>;

bool has_kernel() {
  static const bool has = [] {
    const auto op = c10::Dispatcher::singleton().findSchema({"aten::_fused_adamw_", ""});
    return op && op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1);
  }();
  return has;
}

// Waits for one number on the device.
double number_of(const Tensor& x) { return x.item<double>(); }

// On the host: min(1, max_norm / norm) / divisor, in fp64 like clip_factor.
Tensor update_factor(const Tensor& squares, const MaybeTensor& loss, double max_norm, double divisor) {
  if (!has_kernel()) return reference("concord::update_factor", {squares, loss, max_norm, divisor}).at(0).toTensor();
  const double norm = std::sqrt(number_of(squares));
  const double clip = max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
  const bool finite = std::isfinite(norm) && (!loss || std::isfinite(number_of(*loss)));
  return at::full({1}, finite ? clip / divisor : std::numeric_limits<double>::quiet_NaN(), at::kFloat);
}

// Tensors of one update: neighbours in memory, as one.
struct Arrays {
  Tensor weights, m, v, values, grads;  // |values| may be undefined
};

// Up to this many elements, because the scaled gradients take memory: 256 MiB.
constexpr int64_t kMaxElements = int64_t{1} << 26;

std::vector<Arrays> join_neighbours(TensorList weights, TensorList m, TensorList v, TensorList values,
                                    TensorList grads) {
  std::vector<Arrays> all;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i].numel() == 0) continue;
    const Arrays next{weights[i], m[i], v[i], values.empty() ? Tensor() : values[i], grads[i]};
    const auto extends = [&](const Arrays& a) {
      return a.weights.numel() + next.weights.numel() <= kMaxElements && follows(a.weights, next.weights) &&
             follows(a.m, next.m) && follows(a.v, next.v) && follows(a.values, next.values) &&
             follows(a.grads, next.grads);
    };
    if (all.empty() || !extends(all.back())) {
      all.push_back(next);
      continue;
    }
    Arrays& a = all.back();
    a = {joined(a.weights, next.weights), joined(a.m, next.m), joined(a.v, next.v), joined(a.values, next.values),
         joined(a.grads, next.grads)};
  }
  return all;
}

bool has_fused_adamw(TensorList weights, TensorList m, TensorList v) {
  const auto fits = [](const Tensor& x) { return x.scalar_type() == at::kFloat && x.is_contiguous(); };
  return std::ranges::all_of(weights, fits) && std::ranges::all_of(m, fits) && std::ranges::all_of(v, fits);
}

// A number of steps after which no power of beta is left. Kept forever, and created on the host, so that every stream
// may read it.
Tensor many_steps(c10::Device device) {
  static auto* const made = new std::map<c10::DeviceIndex, Tensor>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  Tensor& steps = (*made)[device.index()];
  if (!steps.defined()) steps = at::full({1}, 1e9, at::kFloat).to(device);
  return steps;
}

// With s = sqrt_bias_correction2, step_size m / (sqrt(v) / s + eps) = step_size s m / (sqrt(v) + eps s): the vendor
// gets the corrections of the bias in the learning rate and eps, and a number of steps that corrects nothing.
void adamw_(TensorList weights, TensorList m, TensorList v, TensorList values, TensorList grads,
            const MaybeTensor& factor, double grad_scale, double decay, double one_minus_beta1, double beta2,
            double one_minus_beta2, double step_size, double sqrt_bias_correction2, double eps) {
  if (!has_kernel() || !has_fused_adamw(weights, m, v)) {
    reference("concord::adamw_", {weights.vec(), m.vec(), v.vec(), values.vec(), grads.vec(), factor, grad_scale, decay,
                                  one_minus_beta1, beta2, one_minus_beta2, step_size, sqrt_bias_correction2, eps});
    return;
  }
  const double scale = factor ? number_of(*factor) : grad_scale;
  if (factor && !std::isfinite(scale)) return;
  const double rate = step_size * sqrt_bias_correction2;
  for (const Arrays& a : join_neighbours(weights, m, v, values, grads)) {
    const Tensor wide = a.grads.to(at::kFloat);
    at::_fused_adamw_({a.weights}, {scale == 1 ? wide : wide * scale}, {a.m}, {a.v}, {}, {many_steps(wide.device())},
                      rate, 1 - one_minus_beta1, beta2, rate == 0 ? 0 : (1 - decay) / rate, eps * sqrt_bias_correction2,
                      /*amsgrad=*/false, /*maximize=*/false);
    if (a.values.defined()) a.values.copy_(a.weights);
  }
}

TORCH_LIBRARY_IMPL(concord, PrivateUse1, m) {
  m.impl("adamw_", adamw_);
  m.impl("update_factor", update_factor);
}

}  // namespace
}  // namespace concord::ascend::torch_side
