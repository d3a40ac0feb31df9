// SwiGLU on Ascend: torch_npu's fused operators (CANN's SwiGlu and SwiGluGrad).
#include <ATen/core/Tensor.h>

#include "backends/ascend/torch/ops/dispatcher.h"

namespace concord::ascend::torch_side {
namespace {

using at::Tensor;

bool has_fused_swiglu(const Tensor& x) {
  const auto type = x.scalar_type();
  return (type == at::kFloat || type == at::kHalf || type == at::kBFloat16) && x.numel() > 0;
}

Tensor swiglu(const Tensor& gate_up) {
  static const auto fused = find("npu_swiglu");
  if (!fused || !has_fused_swiglu(gate_up)) return reference("concord::swiglu", {gate_up}).at(0).toTensor();
  return call(*fused, {{"input", gate_up.contiguous()}}).at(0).toTensor();
}

Tensor swiglu_backward(const Tensor& grad, const Tensor& gate_up) {
  static const auto fused = find("npu_swiglu_backward");
  if (!fused || !has_fused_swiglu(gate_up)) {
    return reference("concord::swiglu_backward", {grad, gate_up}).at(0).toTensor();
  }
  return call(*fused, {{"grad_output", grad.contiguous()}, {"input", gate_up.contiguous()}}).at(0).toTensor();
}

TORCH_LIBRARY_IMPL(concord, PrivateUse1, m) {
  m.impl("swiglu", swiglu);
  m.impl("swiglu_backward", swiglu_backward);
}

}  // namespace
}  // namespace concord::ascend::torch_side
