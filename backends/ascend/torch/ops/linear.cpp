// Weight gradients on Ascend, added into fp32 by one operator: torch_npu's grouped product with addition (CANN's
// GroupedMatmulAdd), with one group. Its 16-bit operands are not converted.
//
// n rows, o, h sizes of outputs and inputs.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>

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

void linear_weight_grad_set_(Tensor& main_oh, const Tensor& grad, const Tensor& x) {
  if (!grouped_matmul_add() || !has_fused_weight_grad(main_oh, grad, x)) {
    reference("concord::linear_weight_grad_set_", {main_oh, grad, x});
    return;
  }
  main_oh.zero_();
  linear_weight_grad_(main_oh, grad, x);
}

TORCH_LIBRARY_IMPL(concord, PrivateUse1, m) {
  m.impl("linear_weight_grad_", linear_weight_grad_);
  m.impl("linear_weight_grad_set_", linear_weight_grad_set_);
}

}  // namespace
}  // namespace concord::ascend::torch_side
