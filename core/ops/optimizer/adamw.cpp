#include "core/ops/optimizer/adamw.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones_like.h>
#include <fmt/core.h>

#include <cmath>

#include "core/ops/check.h"
#include "core/ops/dispatch.h"
#include "core/ops/optimizer/block_codes.h"
#include "core/torch/remainder.h"

namespace concord {
namespace ops::adamw_op {
namespace {

using at::ArrayRef;
using at::IntArrayRef;
using at::TensorList;
using MaybeTensor = std::optional<at::Tensor>;

constexpr size_t kNumbers = 8;  // of AdamWStep

void step_one(const at::Tensor& w, const at::Tensor& m, const at::Tensor& v, const at::Tensor& g, double decay,
              double one_minus_beta1, double beta2, double one_minus_beta2, double step_size,
              double sqrt_bias_correction2, double eps) {
  // w = (1 - lr weight_decay) w
  w.mul_(decay);
  // m_t = beta1 m + (1 - beta1) g, as m + (1 - beta1) (g - m)
  m.add_(g - m, one_minus_beta1);
  // v_t = beta2 v + (1 - beta2) g^2
  v.mul_(beta2).add_(g * g, one_minus_beta2);
  // w_t = w - lr m^ / (sqrt(v^) + eps), where lr m^ = step_size m_t and sqrt(v^) = sqrt(v_t) / sqrt(1 - beta2^t)
  w.sub_(m / (v.sqrt() / sqrt_bias_correction2 + eps), step_size);
}

// Like step_one, with one operator per line of the formula for all tensors.
void step_all(TensorList weights, TensorList m, TensorList v, TensorList scaled, double decay, double one_minus_beta1,
              double beta2, double one_minus_beta2, double step_size, double sqrt_bias_correction2, double eps) {
  // w = (1 - lr weight_decay) w
  at::_foreach_mul_(weights, decay);
  // m_t = beta1 m + (1 - beta1) g
  at::_foreach_lerp_(m, scaled, one_minus_beta1);
  // v_t = beta2 v + (1 - beta2) g^2
  at::_foreach_mul_(v, beta2);
  at::_foreach_addcmul_(v, scaled, scaled, one_minus_beta2);
  // sqrt(v^) + eps, where v^ = v_t / (1 - beta2^t)
  const std::vector<at::Tensor> denominators = at::_foreach_sqrt(v);
  at::_foreach_div_(denominators, sqrt_bias_correction2);
  at::_foreach_add_(denominators, eps);
  // w_t = w - lr m^ / (sqrt(v^) + eps), where lr m^ = step_size m_t
  at::_foreach_addcdiv_(weights, m, denominators, -step_size);
}

void reference(TensorList weights, TensorList m, TensorList v, TensorList values, TensorList grads,
               const MaybeTensor& factor, double grad_scale, double decay, double one_minus_beta1, double beta2,
               double one_minus_beta2, double step_size, double sqrt_bias_correction2, double eps) {
  if (weights.empty()) return;
  const double scale = factor ? factor->item<double>() : grad_scale;
  if (factor && !std::isfinite(scale)) return;
  std::vector<at::Tensor> scaled;
  for (const at::Tensor& grad : grads) scaled.push_back(grad.to(weights[0].scalar_type()).mul(scale));
  if (weights[0].scalar_type() != at::kDouble) {
    step_all(weights, m, v, scaled, decay, one_minus_beta1, beta2, one_minus_beta2, step_size, sqrt_bias_correction2,
             eps);
  } else {  // torch_npu's foreach operators do not support double
    for (size_t i = 0; i < weights.size(); ++i) {
      step_one(weights[i], m[i], v[i], scaled[i], decay, one_minus_beta1, beta2, one_minus_beta2, step_size,
               sqrt_bias_correction2, eps);
    }
  }
  for (size_t i = 0; i < values.size(); ++i) values[i].copy_(weights[i]);
}

void step(TensorList weights, TensorList m, TensorList v, TensorList values, TensorList grads,
          const MaybeTensor& factor, ArrayRef<double> n) {
  static const auto op = find<void(TensorList, TensorList, TensorList, TensorList, TensorList, const MaybeTensor&,
                                   double, double, double, double, double, double, double, double)>("concord::adamw_");
  op.call(weights, m, v, values, grads, factor, n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7]);
}

// One group after the other. |values| has tensors for groups of |value_counts| other than 0 only.
void reference_groups(TensorList weights, TensorList m, TensorList v, TensorList values, TensorList grads,
                      IntArrayRef counts, IntArrayRef value_counts, const MaybeTensor& factor,
                      ArrayRef<double> numbers) {
  size_t first = 0, first_value = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const auto count = static_cast<size_t>(counts[i]), of_values = static_cast<size_t>(value_counts[i]);
    if (count == 0) continue;
    step(weights.slice(first, count), m.slice(first, count), v.slice(first, count),
         values.slice(first_value, of_values), grads.slice(first, count), factor,
         numbers.slice(i * kNumbers, kNumbers));
    first += count;
    first_value += of_values;
  }
}

// Weights in fp32 or fp64, and back.
struct WideWeights {
  at::Tensor kept, values, wide;  // |wide| is |kept| unless that is remainders of |values|

  WideWeights(const at::Tensor& weights, TensorList all_values, size_t i) : kept(weights), wide(weights) {
    if (!has_remainder()) return;
    values = all_values[i];
    wide = at::empty(kept.sizes(), kept.options().dtype(at::kFloat));
    join_remainder(values.to(at::kBFloat16), kept, wide);
  }
  bool has_remainder() const { return kept.scalar_type() == at::kShort; }
  void store() const {
    if (!has_remainder()) return;
    const at::Tensor high = values.to(at::kBFloat16);
    split_remainder(wide, high, kept);
    values.copy_(high);
  }
};

// A moment in the type of the weights, and back.
struct WideMoment {
  at::Tensor kept, scales, table, wide;  // |wide| is |kept| unless that is narrow

  WideMoment(const at::Tensor& weights, TensorList all, TensorList all_scales, const at::Tensor& table_, size_t i)
      : kept(all[i]), table(table_.to(at::kFloat)), wide(kept) {
    if (kept.scalar_type() == weights.scalar_type()) return;
    wide = at::empty(kept.sizes(), weights.options());
    if (kept.scalar_type() != at::kByte) {
      wide.copy_(kept);  // unlike to(), which converts to fp32 instead of fp64 on torch_npu
      return;
    }
    scales = all_scales[i];
    decode_blocks(kept, scales.to(at::kFloat), table, wide);
  }
  void store() const {
    if (kept.scalar_type() == at::kByte) {
      encode_blocks(wide.to(at::kFloat), table, kept, scales);
    } else if (!wide.is_same(kept)) {
      kept.copy_(wide);
    }
  }
};

void reference_narrow(TensorList weights, TensorList m, TensorList v, TensorList m_scales, TensorList v_scales,
                      TensorList values, TensorList grads, const at::Tensor& m_table, const at::Tensor& v_table,
                      const MaybeTensor& factor, ArrayRef<double> numbers) {
  std::vector<double> n = numbers.vec();
  if (factor) n[0] = factor->item<double>();
  if (factor && !std::isfinite(n[0])) return;
  for (size_t i = 0; i < weights.size(); ++i) {
    const WideWeights w(weights[i], values, i);
    const WideMoment wide_m(w.wide, m, m_scales, m_table, i), wide_v(w.wide, v, v_scales, v_table, i);
    step(w.wide, wide_m.wide, wide_v.wide, values.empty() || w.has_remainder() ? TensorList() : values.slice(i, 1),
         grads.slice(i, 1), {}, n);
    w.store();
    wide_m.store();
    wide_v.store();
  }
}

// x - x is 0 if x is finite, otherwise NaN.
at::Tensor reference_factor(const at::Tensor& squares, const MaybeTensor& loss, double max_norm, double divisor) {
  const at::Tensor norm = squares.sqrt();
  const at::Tensor clip =
      max_norm > 0 ? at::full_like(norm, max_norm).div_(norm + 1e-6).clamp_max_(1) : at::ones_like(norm);
  at::Tensor factor = clip.div(at::full_like(norm, divisor)) + (norm - norm);
  if (loss) factor = factor + (*loss - *loss);
  return factor.to(at::kFloat);
}

TORCH_LIBRARY_FRAGMENT(concord, lib) {
  lib.def("update_factor(Tensor squares, Tensor? loss, float max_norm, float divisor) -> Tensor");
  lib.def(
      "adamw_(Tensor(a!)[] weights, Tensor(b!)[] m, Tensor(c!)[] v, Tensor(d!)[] values, Tensor[] grads, "
      "Tensor? factor, float grad_scale, float decay, float one_minus_beta1, float beta2, float one_minus_beta2, float "
      "step_size, "
      "float sqrt_bias_correction2, float eps) -> ()");
  lib.def(
      "adamw_groups_(Tensor(a!)[] weights, Tensor(b!)[] m, Tensor(c!)[] v, Tensor(d!)[] values, Tensor[] grads, "
      "int[] counts, int[] value_counts, Tensor? factor, float[] numbers) -> ()");
  lib.def(
      "adamw_narrow_(Tensor(a!)[] weights, Tensor(b!)[] m, Tensor(c!)[] v, Tensor(d!)[] m_scales, Tensor(e!)[] "
      "v_scales, Tensor(f!)[] values, Tensor[] grads, Tensor m_table, Tensor v_table, Tensor? factor, float[] numbers) "
      "-> ()");
}
TORCH_LIBRARY_IMPL(concord, CompositeExplicitAutograd, lib) {
  lib.impl("adamw_", reference);
  lib.impl("adamw_groups_", reference_groups);
  lib.impl("adamw_narrow_", reference_narrow);
  lib.impl("update_factor", reference_factor);
}

}  // namespace
}  // namespace ops::adamw_op

namespace {

auto narrow_op() {
  using at::TensorList;
  static const auto op =
      ops::find<void(TensorList, TensorList, TensorList, TensorList, TensorList, TensorList, TensorList,
                     const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, at::ArrayRef<double>)>(
          "concord::adamw_narrow_");
  return op;
}

bool has_narrow_state(const AdamWLists& lists) {
  if (lists.weights.empty()) return false;
  const auto type = lists.weights.front().scalar_type();
  return type == at::kShort || lists.m.front().scalar_type() != type || lists.v.front().scalar_type() != type;
}

std::vector<double> numbers_of(const AdamWStep& n) {
  return {n.grad_scale,      n.decay,     n.one_minus_beta1,       n.beta2,
          n.one_minus_beta2, n.step_size, n.sqrt_bias_correction2, n.eps};
}

}  // namespace

void adamw_(const AdamWLists& lists, const AdamWStep& step, const std::optional<at::Tensor>& factor) {
  if (has_narrow_state(lists)) {
    const c10::Device device = lists.weights.front().device();
    narrow_op().call(lists.weights, lists.m, lists.v, lists.m_scales, lists.v_scales, lists.values, lists.grads,
                     code_table(code_map_of("exp_avg"), device), code_table(code_map_of("exp_avg_sq"), device), factor,
                     numbers_of(step));
    return;
  }
  ops::adamw_op::step(lists.weights, lists.m, lists.v, lists.values, lists.grads, factor, numbers_of(step));
}

void adamw_groups_(const std::vector<AdamWGroup>& groups, const std::optional<at::Tensor>& factor) {
  static const auto op =
      ops::find<void(at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::IntArrayRef,
                     at::IntArrayRef, const std::optional<at::Tensor>&, at::ArrayRef<double>)>(
          "concord::adamw_groups_");
  AdamWLists all;
  std::vector<int64_t> counts, value_counts;
  std::vector<double> numbers;
  const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  for (const AdamWGroup& group : groups) {
    if (has_narrow_state(group.lists)) {
      adamw_(group.lists, group.step, factor);
      continue;
    }
    append(all.weights, group.lists.weights);
    append(all.m, group.lists.m);
    append(all.v, group.lists.v);
    append(all.values, group.lists.values);
    append(all.grads, group.lists.grads);
    append(numbers, numbers_of(group.step));
    counts.push_back(static_cast<int64_t>(group.lists.weights.size()));
    value_counts.push_back(static_cast<int64_t>(group.lists.values.size()));
  }
  if (all.weights.empty()) return;
  op.call(all.weights, all.m, all.v, all.values, all.grads, counts, value_counts, factor, numbers);
}

bool takes_narrow_state(c10::Device device) {
  return narrow_op().hasKernelForDispatchKey(c10::computeDispatchKey(std::nullopt, std::nullopt, device));
}

at::Tensor update_factor(const at::Tensor& squares, const std::optional<at::Tensor>& loss, double max_norm,
                         double divisor) {
  static const auto op = ops::find<at::Tensor(const at::Tensor&, const std::optional<at::Tensor>&, double, double)>(
      "concord::update_factor");
  if (squares.numel() != 1 || (loss && loss->numel() != 1)) {
    ops::refuse("update_factor", fmt::format("squares is {} and the loss {}; must be one number each",
                                             ops::text_of(squares), ops::text_of(loss.value_or(at::Tensor()))));
  }
  return op.call(squares, loss, max_norm, divisor);
}

}  // namespace concord
