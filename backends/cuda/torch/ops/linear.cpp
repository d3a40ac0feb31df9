// The weight's half of concord::linear on CUDA: one GEMM of 16-bit operands that adds to fp32.
#include <ATen/ops/addmm.h>

#include "backends/cuda/torch/ops/tensors.h"

namespace concord::cuda::torch_side {
namespace {

using at::Tensor;

Tensor rows(const Tensor& x) { return x.reshape({-1, x.size(-1)}); }

void add_weight_grad(Tensor& main, const Tensor& grad, const Tensor& x) {
  const bool narrow = grad.scalar_type() == at::kBFloat16 || grad.scalar_type() == at::kHalf;
  if (!narrow || main.scalar_type() != at::kFloat || grad.numel() == 0 || x.numel() == 0) {
    reference("concord::linear_weight_grad_", {main, grad, x});
    return;
  }
  at::addmm_out(main, main, rows(grad).t(), rows(x), at::kFloat);
}

TORCH_LIBRARY_IMPL(concord, CUDA, m) { m.impl("linear_weight_grad_", add_weight_grad); }

}  // namespace
}  // namespace concord::cuda::torch_side
