// concord::rms_norm and its derivative on CUDA.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "backends/cuda/torch/ops/choices.h"
#include "backends/cuda/torch/ops/tensors.h"

namespace concord::cuda::torch_side {
namespace {

using at::Tensor;
using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

const Choice kReference("rms_norm_backward: the reference, for rows beyond a block's registers", kAllTypes);

struct Normed {
  Tensor sum, y, rstd;  // |sum| only with a branch
};

Normed normed(const Tensor& x, const Tensor& branch, double multiplier, const Tensor& weight, double eps) {
  const OnDevice device(x.device());
  const Tensor dense = x.contiguous(), scale = weight.contiguous();
  const Tensor added = branch.defined() ? branch.contiguous() : Tensor();
  const Normed made{branch.defined() ? at::empty_like(dense) : Tensor(), at::empty_like(dense),
                    at::empty(x.sizes().slice(0, x.sizes().size() - 1), sums_of(x))};
  Branch with;
  if (branch.defined()) with = {added.const_data_ptr(), multiplier, made.sum.mutable_data_ptr()};
  rms_norm(where(x), rows_of(dense), dense.const_data_ptr(), with, scale.const_data_ptr(), eps,
           made.y.mutable_data_ptr(), made.rstd.mutable_data_ptr());
  return made;
}

Pair norm_forward(const Tensor& x, const Tensor& weight, double eps) {
  const Normed made = normed(x, {}, 1, weight, eps);
  return {made.y, made.rstd};
}

Triple add_norm_forward(const Tensor& x, const Tensor& branch, const Tensor& weight, double eps, double multiplier) {
  const Normed made = normed(x, branch, multiplier, weight, eps);
  return {made.sum, made.y, made.rstd};
}

// |more| may be undefined.
Pair add_norm_backward(const Tensor& more, const Tensor& grad, const Tensor& x, const Tensor& weight,
                       const Tensor& rstd) {
  const OnDevice device(x.device());
  const Rows shape = rows_of(x);
  const Tensor g = grad.contiguous(), dense = x.contiguous(), scale = weight.contiguous(), r = rstd.contiguous();
  const Tensor added = more.defined() ? more.contiguous() : Tensor();
  const void* const rest = more.defined() ? added.const_data_ptr() : nullptr;
  const auto fits = {g.const_data_ptr(), dense.const_data_ptr(), scale.const_data_ptr(), rest};
  if (!rms_norm_fits(shape, type_of(x), fits)) {
    kReference.take(type_of(x));
    const auto made = more.defined() ? reference("concord::add_rms_norm_backward", {more, grad, x, weight, rstd})
                                     : reference("concord::rms_norm_backward", {grad, x, weight, rstd});
    return {made.at(0).toTensor(), made.at(1).toTensor()};
  }
  const Tensor dx = at::empty_like(dense), dweight = at::empty_like(scale);
  const Tensor scratch = at::empty({rms_norm_blocks(shape, type_of(x)), shape.width}, sums_of(x));
  rms_norm_backward(where(x), shape, g.const_data_ptr(), dense.const_data_ptr(), scale.const_data_ptr(),
                    r.const_data_ptr(), rest, dx.mutable_data_ptr(), scratch.mutable_data_ptr(),
                    dweight.mutable_data_ptr());
  return {dx, dweight};
}

Pair norm_backward(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& rstd) {
  return add_norm_backward({}, grad, x, weight, rstd);
}

TORCH_LIBRARY_IMPL(concord, CUDA, m) {
  m.impl("rms_norm", norm_forward);
  m.impl("rms_norm_backward", norm_backward);
  m.impl("add_rms_norm", add_norm_forward);
  m.impl("add_rms_norm_backward", add_norm_backward);
}

}  // namespace
}  // namespace concord::cuda::torch_side
