// The RMS norms on Ascend: torch_npu's fused operators (CANN's RmsNorm, AddRmsNorm and RmsNormGrad). Inputs beyond
// their limits use the reference.
#include <ATen/TensorOperators.h>

#include <tuple>

#include "backends/ascend/torch/ops/dispatcher.h"

namespace concord::ascend::torch_side {
namespace {

using at::Tensor;
using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

bool has_fused_norm(const Tensor& x, const Tensor& weight) {
  const auto type = x.scalar_type();
  const bool is_known = type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
  return is_known && weight.scalar_type() == type && x.numel() > 0;
}

Pair rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  static const auto fused = find("npu_rms_norm");
  if (!fused || !has_fused_norm(x, weight)) {
    const Stack made = reference("concord::rms_norm", {x, weight, eps});
    return {made.at(0).toTensor(), made.at(1).toTensor()};
  }
  const Stack made = call(*fused, {{"input", x.contiguous()}, {"gamma", weight}, {"epsilon", eps}});
  return {made.at(0).toTensor(), made.at(1).toTensor().squeeze(-1)};
}

// The weight's gradient stays in fp32, in which the vendor sums it.
Pair rms_norm_backward(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& rstd) {
  static const auto fused = find("npu_rms_norm_backward");
  if (!fused || !has_fused_norm(x, weight)) {
    const Stack made = reference("concord::rms_norm_backward", {grad, x, weight, rstd});
    return {made.at(0).toTensor(), made.at(1).toTensor()};
  }
  const Stack made = call(*fused, {{"dy", grad.contiguous()},
                                   {"input", x.contiguous()},
                                   {"gamma", weight},
                                   {"rstd", rstd.unsqueeze(-1).contiguous()}});
  return {made.at(0).toTensor(), made.at(1).toTensor()};
}

Triple add_rms_norm(const Tensor& x, const Tensor& branch, const Tensor& weight, double eps, double multiplier) {
  static const auto fused = find("npu_add_rms_norm");
  if (!fused || !has_fused_norm(x, weight) || multiplier != 1) {
    const Stack made = reference("concord::add_rms_norm", {x, branch, weight, eps, multiplier});
    return {made.at(0).toTensor(), made.at(1).toTensor(), made.at(2).toTensor()};
  }
  const Stack made =
      call(*fused, {{"x1", x.contiguous()}, {"x2", branch.contiguous()}, {"gamma", weight}, {"epsilon", eps}});
  return {made.at(2).toTensor(), made.at(0).toTensor(), made.at(1).toTensor().squeeze(-1)};
}

// The norm's gradient is rounded before |more| is added; the reference adds first.
Pair add_rms_norm_backward(const Tensor& more, const Tensor& grad, const Tensor& sum, const Tensor& weight,
                           const Tensor& rstd) {
  const auto [dx, dweight] = rms_norm_backward(grad, sum, weight, rstd);
  return {dx + more, dweight};
}

TORCH_LIBRARY_IMPL(concord, PrivateUse1, m) {
  m.impl("rms_norm", rms_norm);
  m.impl("rms_norm_backward", rms_norm_backward);
  m.impl("add_rms_norm", add_rms_norm);
  m.impl("add_rms_norm_backward", add_rms_norm_backward);
}

}  // namespace
}  // namespace concord::ascend::torch_side
