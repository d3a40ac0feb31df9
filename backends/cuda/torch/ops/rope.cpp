// concord::rope, which is its own derivative with the angles turned back, on CUDA.
#include <ATen/ops/empty.h>

#include "backends/cuda/torch/ops/tensors.h"

namespace concord::cuda::torch_side {
namespace {

using at::Tensor;

// [outer, inner, heads, dim]: the last dim before the heads is inner, those before it together are outer.
Tensor as_four(const Tensor& x) {
  const int64_t inner = x.dim() > 2 ? x.size(-3) : 1;
  return x.reshape({x.numel() == 0 ? 0 : -1, inner, x.size(-2), x.size(-1)});
}

Tensor angles_of(const Tensor& angles, const Tensor& x) {
  auto sizes = x.sizes().slice(0, static_cast<size_t>(x.dim() - 2)).vec();
  const int64_t inner = sizes.empty() ? 1 : sizes.back();
  sizes.push_back(angles.size(-1));
  return angles.expand(sizes).reshape({-1, inner, angles.size(-1)});
}

Tensor turn(const Tensor& x, const Tensor& cos, const Tensor& sin, bool back) {
  const Tensor y = at::empty(x.sizes(), x.options());
  if (x.numel() == 0) return y;
  const OnDevice device(x.device());
  const Tensor four = as_four(x.stride(-1) == 1 ? x : x.contiguous());
  const Tensor c = angles_of(cos.contiguous(), x), s = angles_of(sin.contiguous(), x);
  const RopeShape shape{four.size(0),
                        four.size(1),
                        four.size(2),
                        four.size(3),
                        cos.size(-1),
                        {four.stride(0), four.stride(1), four.stride(2)},
                        {c.stride(0), c.stride(1)}};
  rope(where(x), shape, four.const_data_ptr(), c.const_data_ptr(), s.const_data_ptr(), back, y.mutable_data_ptr());
  return y;
}

TORCH_LIBRARY_IMPL(concord, CUDA, m) { m.impl("rope", turn); }

}  // namespace
}  // namespace concord::cuda::torch_side
