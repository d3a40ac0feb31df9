// concord::rms_norm and its derivative on CUDA.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "backends/cuda/torch/ops/choices.h"
#include "backends/cuda/torch/ops/tensors.h"

namespace concord::cuda::torch_side {
namespace {

using at::Tensor;
using Pair = std::tuple<Tensor, Tensor>;

const Choice kReference("rms_norm_backward: the reference, for sums beyond a block's memory", kAllTypes);

Pair rms_norm_on_device(const Tensor& x, const Tensor& weight, double eps) {
  const OnDevice device(x.device());
  const Tensor dense = x.contiguous(), scale = weight.contiguous();
  const Tensor y = at::empty_like(dense);
  const Tensor rstd = at::empty(x.sizes().slice(0, x.sizes().size() - 1), sums_of(x));
  rms_norm(where(x), rows_of(dense), dense.const_data_ptr(), scale.const_data_ptr(), eps, y.mutable_data_ptr(),
           rstd.mutable_data_ptr());
  return {y, rstd};
}

Pair rms_norm_backward_on_device(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& rstd) {
  const Rows shape = rows_of(x);
  if (!rms_norm_fits(shape, type_of(x))) {
    kReference.take(type_of(x));
    const auto made = reference("concord::rms_norm_backward", {grad, x, weight, rstd});
    return {made.at(0).toTensor(), made.at(1).toTensor()};
  }
  const OnDevice device(x.device());
  const Tensor g = grad.contiguous(), dense = x.contiguous(), scale = weight.contiguous(), r = rstd.contiguous();
  const Tensor dx = at::empty_like(dense), dweight = at::empty_like(scale);
  const Tensor scratch = at::empty({rms_norm_blocks(shape), shape.width}, sums_of(x));
  rms_norm_backward(where(x), shape, g.const_data_ptr(), dense.const_data_ptr(), scale.const_data_ptr(),
                    r.const_data_ptr(), dx.mutable_data_ptr(), scratch.mutable_data_ptr(), dweight.mutable_data_ptr());
  return {dx, dweight};
}

TORCH_LIBRARY_IMPL(concord, CUDA, m) {
  m.impl("rms_norm", rms_norm_on_device);
  m.impl("rms_norm_backward", rms_norm_backward_on_device);
}

}  // namespace
}  // namespace concord::cuda::torch_side
