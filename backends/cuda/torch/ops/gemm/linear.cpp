// concord::linear and its derivative on CUDA: large GEMMs by the fastest algorithm that cublasLt has for the shape, the
// others by libtorch. The weight's half is one GEMM of 16-bit operands that adds to fp32.
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>

#include "backends/cuda/torch/ops/choices.h"
#include "backends/cuda/torch/ops/gemm/gemm.h"
#include "backends/cuda/torch/ops/gemm/run_gemm.h"
#include "backends/cuda/torch/ops/tensors.h"

namespace concord::cuda::torch_side {
namespace {

using at::Tensor;

// [timed]
const Choice kGemm[2] = {{"linear: libtorch's GEMM", kShortTypes},
                         {"linear: a timed GEMM", kShortTypes, has_timed_gemms}};

Tensor rows(const Tensor& x) { return x.reshape({-1, x.size(-1)}); }

bool is_narrow(const Tensor& x) { return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf; }

// Whether cublasLt is asked; |a|, |b| and |c| are the matrices.
bool goes_timed(const Gemm& g, const Tensor& a, const Tensor& b, const Tensor& c) {
  const bool timed =
      is_narrow(a) && a.scalar_type() == b.scalar_type() && is_ready(a) && is_ready(b) && is_ready(c) && takes(g);
  kGemm[timed].take(g.type);
  return timed;
}

std::vector<int64_t> with_last(const Tensor& x, int64_t size) {
  auto sizes = x.sizes().vec();
  sizes.back() = size;
  return sizes;
}

Tensor linear_forward(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  if (!is_narrow(x) || x.numel() == 0) return at::linear(x, weight, bias);
  const OnDevice device(x.device());
  const Tensor in = rows(x);
  const Gemm g{.rows = in.size(0),
               .columns = weight.size(0),
               .depth = in.size(1),
               .transposed_b = true,
               .type = type_of(x),
               .has_bias = bias.has_value()};
  const Tensor y = at::empty(with_last(x, weight.size(0)), x.options());
  if (!goes_timed(g, in, weight, y) || (bias && !is_ready(*bias))) return at::linear(x, weight, bias);
  run_gemm(
      g, {in.const_data_ptr(), weight.const_data_ptr(), y.mutable_data_ptr(), bias ? bias->const_data_ptr() : nullptr},
      x);
  return y;
}

Tensor linear_input_grad(const Tensor& grad, const Tensor& weight) {
  if (!is_narrow(grad) || grad.numel() == 0) return at::matmul(grad, weight);
  const OnDevice device(grad.device());
  const Tensor from = rows(grad);
  const Gemm g{.rows = from.size(0), .columns = weight.size(1), .depth = weight.size(0), .type = type_of(grad)};
  const Tensor dx = at::empty(with_last(grad, weight.size(1)), grad.options());
  if (!goes_timed(g, from, weight, dx)) return at::matmul(grad, weight);
  run_gemm(g, {from.const_data_ptr(), weight.const_data_ptr(), dx.mutable_data_ptr()}, grad);
  return dx;
}

// main (+)= grad^T x
void weight_grad(Tensor& main, const Tensor& grad, const Tensor& x, bool adds) {
  if (!is_narrow(grad) || main.scalar_type() != at::kFloat || grad.numel() == 0 || x.numel() == 0) {
    reference(adds ? "concord::linear_weight_grad_" : "concord::linear_weight_grad_set_", {main, grad, x});
    return;
  }
  const OnDevice device(grad.device());
  const Tensor out = rows(grad), in = rows(x);
  const Gemm g{.rows = out.size(1),
               .columns = in.size(1),
               .depth = in.size(0),
               .transposed_a = true,
               .type = type_of(grad),
               .wide = true,
               .adds = adds};
  if (goes_timed(g, out, in, main)) {
    run_gemm(g, {out.const_data_ptr(), in.const_data_ptr(), main.mutable_data_ptr()}, grad);
  } else {
    at::addmm_out(main, main, out.t(), in, at::kFloat, /*beta=*/adds ? 1 : 0);
  }
}

void add_weight_grad(Tensor& main, const Tensor& grad, const Tensor& x) { weight_grad(main, grad, x, true); }
void set_weight_grad(Tensor& main, const Tensor& grad, const Tensor& x) { weight_grad(main, grad, x, false); }

Tensor linear_bias_grad(const Tensor& grad) {
  constexpr int64_t kMaxLines = 65535;  // limit of the second dim of a grid
  const Tensor from = rows(grad).contiguous();
  const Rows shape = rows_of(from);
  if (from.size(1) == 0 || column_sum_lines(shape) > kMaxLines) return from.sum(0);
  const OnDevice device(grad.device());
  const Tensor sums = at::empty({shape.width}, grad.options());
  const Tensor scratch = at::empty({column_sum_lines(shape), shape.width}, sums_of(grad));
  column_sum(where(grad), shape, from.const_data_ptr(), scratch.mutable_data_ptr(), sums.mutable_data_ptr());
  return sums;
}

TORCH_LIBRARY_IMPL(concord, CUDA, m) {
  m.impl("linear", linear_forward);
  m.impl("linear_bias_grad", linear_bias_grad);
  m.impl("linear_input_grad", linear_input_grad);
  m.impl("linear_weight_grad_", add_weight_grad);
  m.impl("linear_weight_grad_set_", set_weight_grad);
}

}  // namespace
}  // namespace concord::cuda::torch_side
