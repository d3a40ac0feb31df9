// concord::rope, which is its own derivative with the angles turned back, on CUDA.
#include <ATen/ops/empty.h>

#include "backends/cuda/torch/ops/attention/packed_heads.h"

namespace concord::cuda::torch_side {
namespace {

using at::Tensor;

Tensor turn(const Tensor& x, const Tensor& cos, const Tensor& sin, bool back) {
  const Tensor y = at::empty(x.sizes(), x.options());
  if (x.numel() == 0) return y;
  const OnDevice device(x.device());
  const PackedHeads only_q({x, x, x}, cos, sin);
  PackedRope shape = only_q.shape();
  shape.kv_heads = 0;
  rope_packed(where(x), shape, only_q.cos.const_data_ptr(), only_q.sin.const_data_ptr(), back, y.mutable_data_ptr());
  return y;
}

Tensor packed(const HeadTensors& heads, const Tensor& cos, const Tensor& sin, bool back) {
  const Tensor& q = std::get<0>(heads);
  const Tensor y = at::empty(packed_sizes(heads), q.options());
  if (y.numel() == 0) return y;
  const OnDevice device(q.device());
  const PackedHeads from(heads, cos, sin);
  rope_packed(where(q), from.shape(), from.cos.const_data_ptr(), from.sin.const_data_ptr(), back, y.mutable_data_ptr());
  return y;
}

HeadTensors turn_qkv(const Tensor& qkv, const Tensor& cos, const Tensor& sin, int64_t heads, int64_t kv_heads) {
  return cut_heads(packed(cut_heads(qkv, heads, kv_heads), cos, sin, /*back=*/false), heads, kv_heads);
}

Tensor turn_qkv_back(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& cos, const Tensor& sin) {
  return packed({dq, dk, dv}, cos, sin, /*back=*/true);
}

TORCH_LIBRARY_IMPL(concord, CUDA, m) {
  m.impl("rope", turn);
  m.impl("rope_qkv", turn_qkv);
  m.impl("rope_qkv_backward", turn_qkv_back);
}

}  // namespace
}  // namespace concord::cuda::torch_side
