// SwiGLU and its variant with gelu on Ascend: torch_npu's fused operators (CANN's SwiGlu and GeGluV3, with their
// gradients).
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

// Returns act(gate) * up and gelu(gate): approximate 1 is the form with tanh.
Stack run_geglu(const c10::OperatorHandle& op, const Tensor& gate_up) {
  return call(op, {{"input", gate_up}, {"approximate", int64_t{1}}, {"activate_left", true}});
}

Tensor geglu(const Tensor& gate_up) {
  static const auto fused = find("npu_geglu");
  if (!fused || !has_fused_swiglu(gate_up)) return reference("concord::geglu", {gate_up}).at(0).toTensor();
  return run_geglu(*fused, gate_up.contiguous()).at(0).toTensor();
}

// Computes gelu again, since keeping it would take half as much memory as |gate_up|.
Tensor geglu_backward(const Tensor& grad, const Tensor& gate_up) {
  static const auto forward = find("npu_geglu"), fused = find("npu_geglu_grad");
  if (!forward || !fused || !has_fused_swiglu(gate_up)) {
    return reference("concord::geglu_backward", {grad, gate_up}).at(0).toTensor();
  }
  const Tensor dense = gate_up.contiguous();
  return call(*fused, {{"grad_output", grad.contiguous()},
                       {"input", dense},
                       {"gelu", run_geglu(*forward, dense).at(1)},
                       {"approximate", int64_t{1}},
                       {"activate_left", true}})
      .at(0)
      .toTensor();
}

TORCH_LIBRARY_IMPL(concord, PrivateUse1, m) {
  m.impl("geglu", geglu);
  m.impl("geglu_backward", geglu_backward);
  m.impl("swiglu", swiglu);
  m.impl("swiglu_backward", swiglu_backward);
}

}  // namespace
}  // namespace concord::ascend::torch_side
