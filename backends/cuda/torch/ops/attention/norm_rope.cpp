// concord::norm_rope_qkv and its derivative on CUDA.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "backends/cuda/torch/ops/attention/packed_heads.h"
#include "backends/cuda/torch/ops/choices.h"

namespace concord::cuda::torch_side {
namespace {

using at::Tensor;
using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;

const Choice kNormRopeReference("norm_rope_qkv: the reference, for heads without vectors or too wide", kAllTypes);
const Choice kNormRopeBackReference("norm_rope_qkv_backward: the reference, for heads without vectors or too wide",
                                    kAllTypes);

Four norm_turn_qkv(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, const Tensor& cos,
                   const Tensor& sin, int64_t heads, int64_t kv_heads, double eps) {
  const OnDevice device(qkv.device());
  const HeadTensors views = cut_heads(qkv, heads, kv_heads);
  const PackedHeads from(views, cos, sin);
  const Tensor q_scale = q_weight.contiguous(), k_scale = k_weight.contiguous();
  const Tensor y = at::empty(packed_sizes(views), qkv.options());
  const HeadNorms norms{q_scale.const_data_ptr(), k_scale.const_data_ptr(), eps};
  const void *const c = from.cos.const_data_ptr(), *const s = from.sin.const_data_ptr();
  if (!norm_rope_fits(from.shape(), type_of(qkv), c, s, {norms.q, norms.k, y.const_data_ptr()})) {
    kNormRopeReference.take(type_of(qkv));
    const auto made = reference("concord::norm_rope_qkv", {qkv, q_weight, k_weight, cos, sin, heads, kv_heads, eps});
    return {made.at(0).toTensor(), made.at(1).toTensor(), made.at(2).toTensor(), made.at(3).toTensor()};
  }
  auto sizes = qkv.sizes().vec();
  sizes.back() = heads + kv_heads;
  const Tensor rstd = at::empty(sizes, sums_of(qkv));
  norm_rope(where(qkv), from.shape(), norms, c, s, y.mutable_data_ptr(), rstd.mutable_data_ptr());
  const auto [q, k, v] = cut_heads(y, heads, kv_heads);
  return {q, k, v, rstd};
}

HeadTensors norm_turn_qkv_back(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& qkv,
                               const Tensor& rstd, const Tensor& q_weight, const Tensor& k_weight, const Tensor& cos,
                               const Tensor& sin) {
  const OnDevice device(qkv.device());
  const PackedHeads grads({dq, dk, dv}, cos, sin);
  const Tensor x = qkv.contiguous(), r = rstd.contiguous();
  const Tensor q_scale = q_weight.contiguous(), k_scale = k_weight.contiguous();
  const Tensor dqkv = at::empty_like(x), dq_weight = at::empty_like(q_scale), dk_weight = at::empty_like(k_scale);
  const HeadNorms norms{q_scale.const_data_ptr(), k_scale.const_data_ptr(), /*eps=*/0};
  const void *const c = grads.cos.const_data_ptr(), *const s = grads.sin.const_data_ptr();
  const PackedRope shape = grads.shape();
  if (!norm_rope_fits(shape, type_of(x), c, s, {norms.q, norms.k, x.const_data_ptr(), dqkv.const_data_ptr()})) {
    kNormRopeBackReference.take(type_of(x));
    const auto made =
        reference("concord::norm_rope_qkv_backward", {dq, dk, dv, qkv, rstd, q_weight, k_weight, cos, sin});
    return {made.at(0).toTensor(), made.at(1).toTensor(), made.at(2).toTensor()};
  }
  const Tensor scratch = at::empty({norm_rope_lines(shape, type_of(x)), shape.dim}, sums_of(x));
  norm_rope_backward(where(x), shape, norms, c, s, x.const_data_ptr(), r.const_data_ptr(), dqkv.mutable_data_ptr(),
                     scratch.mutable_data_ptr(), dq_weight.mutable_data_ptr(), dk_weight.mutable_data_ptr());
  return {dqkv, dq_weight, dk_weight};
}

TORCH_LIBRARY_IMPL(concord, CUDA, m) {
  m.impl("norm_rope_qkv", norm_turn_qkv);
  m.impl("norm_rope_qkv_backward", norm_turn_qkv_back);
}

}  // namespace
}  // namespace concord::cuda::torch_side
