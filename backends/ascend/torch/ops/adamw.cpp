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
#include <utility>
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

  bool is_followed_by(const Arrays& next) const {
    return follows(weights, next.weights) && follows(m, next.m) && follows(v, next.v) && follows(values, next.values) &&
           follows(grads, next.grads);
  }
  void join(const Arrays& next) {
    *this = {joined(weights, next.weights), joined(m, next.m), joined(v, next.v), joined(values, next.values),
             joined(grads, next.grads)};
  }
};

// The numbers of adamw_, which are those of AdamWStep.
struct Numbers {
  double grad_scale, decay, one_minus_beta1, beta2, one_minus_beta2, step_size, sqrt_bias_correction2, eps;
};

// Neighbours of one or several groups.
struct Run {
  struct Part {
    size_t group;
    Arrays arrays;
  };
  Arrays all;
  std::vector<Part> parts;  // consecutive, each with tensors of one group
};

// Up to this many elements, because the scaled gradients take memory: 256 MiB.
constexpr int64_t kMaxElements = int64_t{1} << 26;

// The tensors of group |i| are the next counts[i]; the next value_counts[i] are its values.
std::vector<Run> join_neighbours(TensorList weights, TensorList m, TensorList v, TensorList values, TensorList grads,
                                 at::IntArrayRef counts, at::IntArrayRef value_counts) {
  std::vector<Run::Part> each;
  size_t next = 0, next_value = 0;
  for (size_t group = 0; group < counts.size(); ++group) {
    for (int64_t i = 0; i < counts[group]; ++i, ++next) {
      const Tensor value = value_counts[group] == 0 ? Tensor() : values[next_value++];
      if (weights[next].numel() > 0) each.push_back({group, {weights[next], m[next], v[next], value, grads[next]}});
    }
  }
  std::ranges::stable_sort(each, {}, [](const Run::Part& part) {
    return std::pair(part.arrays.weights.storage().data(), part.arrays.weights.storage_offset());
  });
  std::vector<Run> runs;
  for (const Run::Part& part : each) {
    const bool extends = !runs.empty() && runs.back().all.is_followed_by(part.arrays) &&
                         runs.back().all.weights.numel() + part.arrays.weights.numel() <= kMaxElements;
    if (!extends) {
      runs.push_back({part.arrays, {part}});
      continue;
    }
    Run& run = runs.back();
    run.all.join(part.arrays);
    if (run.parts.back().group == part.group) {
      run.parts.back().arrays.join(part.arrays);
    } else {
      run.parts.push_back(part);
    }
  }
  return runs;
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
void update(const Arrays& a, const Tensor& grads, const Numbers& n) {
  const double rate = n.step_size * n.sqrt_bias_correction2;
  at::_fused_adamw_({a.weights}, {grads}, {a.m}, {a.v}, {}, {many_steps(grads.device())}, rate, 1 - n.one_minus_beta1,
                    n.beta2, rate == 0 ? 0 : (1 - n.decay) / rate, n.eps * n.sqrt_bias_correction2,
                    /*amsgrad=*/false, /*maximize=*/false);
}

// Gradients are scaled, and values rounded, once for neighbours of several groups.
void adamw_groups_(TensorList weights, TensorList m, TensorList v, TensorList values, TensorList grads,
                   at::IntArrayRef counts, at::IntArrayRef value_counts, const MaybeTensor& factor,
                   at::ArrayRef<double> numbers) {
  std::vector<Numbers> groups;
  for (size_t i = 0; i < numbers.size(); i += 8) {
    const auto n = numbers.slice(i, 8);
    groups.push_back({n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7]});
  }
  const auto has_scale = [&](const Numbers& n) { return n.grad_scale == groups.front().grad_scale; };
  if (!has_kernel() || !has_fused_adamw(weights, m, v) || !std::ranges::all_of(groups, has_scale)) {
    reference("concord::adamw_groups_", {weights.vec(), m.vec(), v.vec(), values.vec(), grads.vec(), counts,
                                         value_counts, factor, numbers.vec()});
    return;
  }
  if (groups.empty()) return;
  const double scale = factor ? number_of(*factor) : groups.front().grad_scale;
  if (factor && !std::isfinite(scale)) return;
  for (const Run& run : join_neighbours(weights, m, v, values, grads, counts, value_counts)) {
    const Tensor wide = run.all.grads.to(at::kFloat), scaled = (scale == 1 ? wide : wide * scale).flatten();
    int64_t begin = 0;
    for (const auto& [group, arrays] : run.parts) {
      const int64_t count = arrays.weights.numel();
      update(arrays, scaled.narrow(0, begin, count).view(arrays.weights.sizes()), groups.at(group));
      begin += count;
    }
    if (run.all.values.defined()) run.all.values.copy_(run.all.weights);
  }
}

void adamw_(TensorList weights, TensorList m, TensorList v, TensorList values, TensorList grads,
            const MaybeTensor& factor, double grad_scale, double decay, double one_minus_beta1, double beta2,
            double one_minus_beta2, double step_size, double sqrt_bias_correction2, double eps) {
  if (!has_kernel() || !has_fused_adamw(weights, m, v)) {
    reference("concord::adamw_", {weights.vec(), m.vec(), v.vec(), values.vec(), grads.vec(), factor, grad_scale, decay,
                                  one_minus_beta1, beta2, one_minus_beta2, step_size, sqrt_bias_correction2, eps});
    return;
  }
  adamw_groups_(weights, m, v, values, grads, {static_cast<int64_t>(weights.size())},
                {static_cast<int64_t>(values.size())}, factor,
                {grad_scale, decay, one_minus_beta1, beta2, one_minus_beta2, step_size, sqrt_bias_correction2, eps});
}

TORCH_LIBRARY_IMPL(concord, PrivateUse1, m) {
  m.impl("adamw_", adamw_);
  m.impl("adamw_groups_", adamw_groups_);
  m.impl("update_factor", update_factor);
}

}  // namespace
}  // namespace concord::ascend::torch_side
