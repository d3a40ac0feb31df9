// concord::swiglu and its derivative on CUDA.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "backends/cuda/torch/ops/tensors.h"

namespace concord::cuda::torch_side {
namespace {

using at::Tensor;

Rows halves_of(const Tensor& gate_up) {
  const Rows both = rows_of(gate_up);
  return {both.rows, both.width / 2};
}

Tensor swiglu_on_device(const Tensor& gate_up) {
  const OnDevice device(gate_up.device());
  const Tensor dense = gate_up.contiguous();
  auto sizes = dense.sizes().vec();
  sizes.back() /= 2;
  const Tensor y = at::empty(sizes, dense.options());
  swiglu(where(dense), halves_of(dense), dense.const_data_ptr(), y.mutable_data_ptr());
  return y;
}

Tensor swiglu_backward_on_device(const Tensor& grad, const Tensor& gate_up) {
  const OnDevice device(gate_up.device());
  const Tensor dense = gate_up.contiguous(), g = grad.contiguous();
  const Tensor result = at::empty_like(dense);
  swiglu_backward(where(dense), halves_of(dense), g.const_data_ptr(), dense.const_data_ptr(),
                  result.mutable_data_ptr());
  return result;
}

TORCH_LIBRARY_IMPL(concord, CUDA, m) {
  m.impl("swiglu", swiglu_on_device);
  m.impl("swiglu_backward", swiglu_backward_on_device);
}

}  // namespace
}  // namespace concord::cuda::torch_side
