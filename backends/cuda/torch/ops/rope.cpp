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

// |x| [..., heads, n] as the kernel takes it: [outer, inner, heads, n], dense in its last dim.
Tensor heads_of(const Tensor& x) { return as_four(x.stride(-1) == 1 ? x : x.contiguous()); }

HeadsFrom from(const Tensor& four) { return {four.const_data_ptr(), {four.stride(0), four.stride(1), four.stride(2)}}; }

Tensor turn(const Tensor& x, const Tensor& cos, const Tensor& sin, bool back) {
  const Tensor y = at::empty(x.sizes(), x.options());
  if (x.numel() == 0) return y;
  const OnDevice device(x.device());
  const Tensor four = heads_of(x), c = angles_of(cos.contiguous(), x), s = angles_of(sin.contiguous(), x);
  const PackedRope shape{four.size(0), four.size(1), four.size(2), /*kv_heads=*/0, four.size(3),
                         cos.size(-1), from(four),   from(four),   from(four),     {c.stride(0), c.stride(1)}};
  rope_packed(where(x), shape, c.const_data_ptr(), s.const_data_ptr(), back, y.mutable_data_ptr());
  return y;
}

// Queries, keys and values, packed: [..., (heads + 2 kv_heads) n].
Tensor packed(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cos, const Tensor& sin, bool back) {
  auto sizes = q.sizes().slice(0, static_cast<size_t>(q.dim() - 2)).vec();
  sizes.push_back((q.size(-2) + 2 * k.size(-2)) * q.size(-1));
  const Tensor y = at::empty(sizes, q.options());
  if (y.numel() == 0) return y;
  const OnDevice device(q.device());
  const Tensor four_q = heads_of(q), four_k = heads_of(k), four_v = heads_of(v);
  const Tensor c = angles_of(cos.contiguous(), q), s = angles_of(sin.contiguous(), q);
  const PackedRope shape{four_q.size(0), four_q.size(1), four_q.size(2), four_k.size(2), four_q.size(3),
                         cos.size(-1),   from(four_q),   from(four_k),   from(four_v),   {c.stride(0), c.stride(1)}};
  rope_packed(where(q), shape, c.const_data_ptr(), s.const_data_ptr(), back, y.mutable_data_ptr());
  return y;
}

using Triple = std::tuple<Tensor, Tensor, Tensor>;

Triple cut(const Tensor& packed, int64_t heads, int64_t kv_heads) {
  const Tensor all = packed.unflatten(-1, {heads + 2 * kv_heads, -1});
  return {all.narrow(-2, 0, heads), all.narrow(-2, heads, kv_heads), all.narrow(-2, heads + kv_heads, kv_heads)};
}

Triple turn_qkv(const Tensor& qkv, const Tensor& cos, const Tensor& sin, int64_t heads, int64_t kv_heads) {
  const auto [q, k, v] = cut(qkv, heads, kv_heads);
  return cut(packed(q, k, v, cos, sin, /*back=*/false), heads, kv_heads);
}

Tensor turn_qkv_back(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& cos, const Tensor& sin) {
  return packed(dq, dk, dv, cos, sin, /*back=*/true);
}

TORCH_LIBRARY_IMPL(concord, CUDA, m) {
  m.impl("rope", turn);
  m.impl("rope_qkv", turn_qkv);
  m.impl("rope_qkv_backward", turn_qkv_back);
}

}  // namespace
}  // namespace concord::cuda::torch_side
