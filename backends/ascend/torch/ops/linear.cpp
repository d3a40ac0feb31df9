// Weight gradients on Ascend, written to fp32 by one operator whose 16-bit operands are not converted: a product, or if
// they are added, torch_npu's grouped product with addition (CANN's GroupedMatmulAdd), with one group. Gradients of
// biases stay in fp32.
//
// n rows, o, h sizes of outputs and inputs.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>

#include <map>
#include <mutex>

#include "backends/ascend/torch/ops/dispatcher.h"

namespace concord::ascend::torch_side {
namespace {

using at::Tensor;

constexpr int64_t kLargestLinearAxis = 65535;  // CANN's documentation of GroupedMatmulAdd

Tensor rows_of_linear(const Tensor& x) { return x.reshape({-1, x.size(-1)}).contiguous(); }

bool has_fused_weight_grad(const Tensor& main_oh, const Tensor& grad, const Tensor& x) {
  const auto type = grad.scalar_type();
  return (type == at::kHalf || type == at::kBFloat16) && x.scalar_type() == type && grad.numel() > 0 &&
         main_oh.scalar_type() == at::kFloat && main_oh.is_contiguous() && main_oh.dim() == 2 &&
         main_oh.size(0) <= kLargestLinearAxis && main_oh.size(1) <= kLargestLinearAxis;
}

// Returns the end of the only group. Up to kMaxKeptRows it is a part of one tensor, which is kept forever and created
// on the host, so that every stream may read it.
Tensor end_of_group(int64_t rows, c10::Device device) {
  constexpr int64_t kMaxKeptRows = 1 << 16;
  if (rows > kMaxKeptRows) return at::full({1}, rows, at::TensorOptions(device).dtype(at::kLong));
  static auto* const made = new std::map<c10::DeviceIndex, Tensor>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  Tensor& ends = (*made)[device.index()];
  if (!ends.defined()) ends = at::arange(kMaxKeptRows + 1, at::kLong).to(device);
  return ends.narrow(0, rows, 1);
}

const std::optional<c10::OperatorHandle>& grouped_matmul_add() {
  static const auto op = find("npu_grouped_matmul_add_");
  return op;
}

void linear_weight_grad_(Tensor& main_oh, const Tensor& grad, const Tensor& x) {
  if (!grouped_matmul_add() || !has_fused_weight_grad(main_oh, grad, x)) {
    reference("concord::linear_weight_grad_", {main_oh, grad, x});
    return;
  }
  const Tensor grad_no = rows_of_linear(grad), x_nh = rows_of_linear(x);
  call(*grouped_matmul_add(), {{"input", main_oh},
                               {"x", grad_no},
                               {"weight", x_nh},
                               {"group_list", end_of_group(grad_no.size(0), grad_no.device())}});
}

// Whether torch_npu has a product of 16-bit matrices into an fp32 one (CANN's Mm).
bool has_wide_product() {
  static const bool has = [] {
    const auto op = c10::Dispatcher::singleton().findSchema({"aten::mm", "dtype_out"});
    return op && op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1);
  }();
  return has;
}

void linear_weight_grad_set_(Tensor& main_oh, const Tensor& grad, const Tensor& x) {
  if (!has_fused_weight_grad(main_oh, grad, x)) {
    reference("concord::linear_weight_grad_set_", {main_oh, grad, x});
  } else if (has_wide_product()) {
    at::mm_out(main_oh, rows_of_linear(grad).t(), rows_of_linear(x), at::kFloat);
  } else {
    main_oh.zero_();
    linear_weight_grad_(main_oh, grad, x);
  }
}

// Gradients that are added to zeros, since no operator overwrites them, are cleared by one fill for many of them.
// Stacks of experts' weights have three dimensions.
bool prefers_cleared_grads(const Tensor& weight) {
  const bool is_short = weight.scalar_type() == at::kHalf || weight.scalar_type() == at::kBFloat16;
  return is_short && grouped_matmul_add() && (weight.dim() > 2 || !has_wide_product());
}

Tensor linear_bias_grad(const Tensor& grad) {
  const Tensor grad_no = grad.reshape({-1, grad.size(-1)});
  const auto wide = grad.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return grad_no.sum(c10::IntArrayRef{0}, /*keepdim=*/false, wide);
}

TORCH_LIBRARY_IMPL(concord, PrivateUse1, m) {
  m.impl("linear_bias_grad", linear_bias_grad);
  m.impl("linear_weight_grad_", linear_weight_grad_);
  m.impl("linear_weight_grad_set_", linear_weight_grad_set_);
  m.impl("prefers_cleared_grads", prefers_cleared_grads);
}

}  // namespace
}  // namespace concord::ascend::torch_side
