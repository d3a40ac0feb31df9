// concord::adamw_ and update_factor on CUDA: each element is read and written once, and nothing waits for the device.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>

#include "backends/cuda/torch/ops/tensors.h"

namespace concord::cuda::torch_side {
namespace {

using at::Tensor;
using at::TensorList;
using MaybeTensor = std::optional<Tensor>;

bool all_are_dense(TensorList tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const Tensor& t) { return t.is_contiguous(); });
}

bool fits(TensorList weights, TensorList m, TensorList v, TensorList values, TensorList grads) {
  const auto all = [](TensorList list, auto... types) {
    return std::all_of(list.begin(), list.end(), [&](const Tensor& t) { return ((t.scalar_type() == types) || ...); });
  };
  return all(weights, at::kFloat) && all(m, at::kFloat) && all(v, at::kFloat) &&
         all(values, at::kBFloat16, at::kHalf) && all(grads, at::kFloat, at::kBFloat16, at::kHalf) &&
         all_are_dense(weights) && all_are_dense(m) && all_are_dense(v) && all_are_dense(values) &&
         all_are_dense(grads);
}

void step(TensorList weights, TensorList m, TensorList v, TensorList values, TensorList grads,
          const MaybeTensor& factor, double grad_scale, double decay, double one_minus_beta1, double beta2,
          double one_minus_beta2, double step_size, double sqrt_bias_correction2, double eps) {
  if (weights.empty()) return;
  if (!fits(weights, m, v, values, grads) || (factor && factor->scalar_type() != at::kFloat)) {
    reference("concord::adamw_", {weights.vec(), m.vec(), v.vec(), values.vec(), grads.vec(), factor, grad_scale, decay,
                                  one_minus_beta1, beta2, one_minus_beta2, step_size, sqrt_bias_correction2, eps});
    return;
  }
  const OnDevice device(weights[0].device());
  const auto narrow = [](double x) { return static_cast<float>(x); };
  const AdamWNumbers numbers{narrow(grad_scale),
                             narrow(decay),
                             narrow(one_minus_beta1),
                             narrow(beta2),
                             narrow(one_minus_beta2),
                             narrow(step_size),
                             narrow(sqrt_bias_correction2),
                             narrow(eps),
                             factor ? factor->const_data_ptr<float>() : nullptr};
  std::vector<AdamWArrays> arrays;
  const bool follows = !values.empty();
  for (size_t i = 0; i < weights.size(); ++i) {
    arrays.push_back({grads[i].const_data_ptr(), type_of(grads[i]), weights[i].mutable_data_ptr<float>(),
                      m[i].mutable_data_ptr<float>(), v[i].mutable_data_ptr<float>(),
                      follows ? values[i].mutable_data_ptr() : nullptr, follows ? type_of(values[i]) : Type::bf16,
                      weights[i].numel()});
  }
  adamw(where(weights[0]).stream, numbers, arrays);
}

Tensor factor_of(const Tensor& squares, const MaybeTensor& loss, double max_norm, double divisor) {
  const OnDevice device(squares.device());
  const Tensor wide = squares.to(at::kDouble), factor = at::empty(squares.sizes(), squares.options().dtype(at::kFloat));
  const Tensor also = loss ? loss->to(wide.options()) : Tensor();
  update_factor(where(squares).stream, wide.const_data_ptr<double>(), loss ? also.const_data_ptr<double>() : nullptr,
                max_norm, divisor, factor.mutable_data_ptr<float>());
  return factor;
}

TORCH_LIBRARY_IMPL(concord, CUDA, lib) {
  lib.impl("adamw_", step);
  lib.impl("update_factor", factor_of);
}

}  // namespace
}  // namespace concord::cuda::torch_side
