#include "core/ops/norm/norm_rope.h"

#include <ATen/ops/cat.h>
#include <fmt/core.h>

#include <tuple>

#include "core/ops/check.h"
#include "core/ops/derivative.h"
#include "core/ops/dispatch.h"

namespace concord {
namespace ops::norm_rope_op {
namespace {

using at::Tensor;
using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;
using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;

Four forward(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, const Tensor& cos, const Tensor& sin,
             int64_t heads, int64_t kv_heads, double eps) {
  static const auto op =
      find<Four(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t, int64_t, double)>(
          "concord::norm_rope_qkv");
  return op.call(qkv, q_weight, k_weight, cos, sin, heads, kv_heads, eps);
}

Triple backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& qkv, const Tensor& rstd,
                const Tensor& q_weight, const Tensor& k_weight, const Tensor& cos, const Tensor& sin) {
  static const auto op =
      find<Triple(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                  const Tensor&, const Tensor&, const Tensor&)>("concord::norm_rope_qkv_backward");
  return op.call(dq, dk, dv, qkv, rstd, q_weight, k_weight, cos, sin);
}

// -------------------------------------------------------------------------------------------------------- reference
// Composed of the two operators, on the host too.

Tensor turn(const Tensor& x, const Tensor& cos, const Tensor& sin, bool back) {
  static const auto op = find<Tensor(const Tensor&, const Tensor&, const Tensor&, bool)>("concord::rope");
  return op.call(x, cos, sin, back);
}

Pair norm(const Tensor& x, const Tensor& weight, double eps) {
  static const auto op = find<Pair(const Tensor&, const Tensor&, double)>("concord::rms_norm");
  return op.call(x, weight, eps);
}

Pair norm_backward(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& rstd) {
  static const auto op =
      find<Pair(const Tensor&, const Tensor&, const Tensor&, const Tensor&)>("concord::rms_norm_backward");
  return op.call(grad, x, weight, rstd);
}

Four reference(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, const Tensor& cos, const Tensor& sin,
               int64_t heads, int64_t kv_heads, double eps) {
  const Tensor all = qkv.unflatten(-1, {heads + 2 * kv_heads, -1});
  const auto [q, q_rstd] = norm(all.narrow(-2, 0, heads), q_weight, eps);
  const auto [k, k_rstd] = norm(all.narrow(-2, heads, kv_heads), k_weight, eps);
  const Tensor v = all.narrow(-2, heads + kv_heads, kv_heads).contiguous();  // as in rope_qkv
  return {turn(q, cos, sin, false), turn(k, cos, sin, false), v, at::cat({q_rstd, k_rstd}, -1)};
}

Triple reference_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& qkv, const Tensor& rstd,
                          const Tensor& q_weight, const Tensor& k_weight, const Tensor& cos, const Tensor& sin) {
  const int64_t heads = dq.size(-2), kv_heads = dk.size(-2);
  const Tensor all = qkv.unflatten(-1, {heads + 2 * kv_heads, -1});
  const auto [dx_q, dq_weight] =
      norm_backward(turn(dq, cos, sin, true), all.narrow(-2, 0, heads), q_weight, rstd.narrow(-1, 0, heads));
  const auto [dx_k, dk_weight] = norm_backward(turn(dk, cos, sin, true), all.narrow(-2, heads, kv_heads), k_weight,
                                               rstd.narrow(-1, heads, kv_heads));
  return {at::cat({dx_q, dx_k, dv}, -2).flatten(-2), dq_weight, dk_weight};
}

// ------------------------------------------------------------------------------------------------------- derivative

Four autograd(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, const Tensor& cos, const Tensor& sin,
              int64_t heads, int64_t kv_heads, double eps) {
  Tensor statistics;
  const auto run = [&] {
    const auto [q, k, v, rstd] = forward(qkv, q_weight, k_weight, cos, sin, heads, kv_heads, eps);
    statistics = rstd;
    return ForwardOfSeveral{{q, k, v}, {qkv, rstd, q_weight, k_weight, cos, sin}};
  };
  const Tensors made = differentiable("norm_rope_qkv", {qkv, q_weight, k_weight}, run, [](const BackwardOfSeveral& b) {
    const auto [dqkv, dq_weight, dk_weight] = backward(b.grads[0], b.grads[1], b.grads[2], b.saved[0], b.saved[1],
                                                       b.saved[2], b.saved[3], b.saved[4], b.saved[5]);
    return Tensors{dqkv, dq_weight, dk_weight};
  });
  return {made[0], made[1], made[2], statistics};
}

TORCH_LIBRARY_FRAGMENT(concord, m) {
  m.def(
      "norm_rope_qkv(Tensor qkv, Tensor q_weight, Tensor k_weight, Tensor cos, Tensor sin, int heads, int kv_heads, "
      "float eps) -> (Tensor q, Tensor k, Tensor v, Tensor rstd)");
  m.def(
      "norm_rope_qkv_backward(Tensor dq, Tensor dk, Tensor dv, Tensor qkv, Tensor rstd, Tensor q_weight, Tensor "
      "k_weight, Tensor cos, Tensor sin) -> (Tensor dqkv, Tensor dq_weight, Tensor dk_weight)");
}
TORCH_LIBRARY_IMPL(concord, CompositeExplicitAutograd, m) {
  m.impl("norm_rope_qkv", reference);
  m.impl("norm_rope_qkv_backward", reference_backward);
}
TORCH_LIBRARY_IMPL(concord, Autograd, m) { m.impl("norm_rope_qkv", autograd); }

void check_norms(const Tensor& qkv, const HeadNorms& norms, int64_t size) {
  for (const Tensor& weight : {norms.q, norms.k}) {
    check_like("norm_rope_qkv", "a norm's weight", weight, qkv);
    if (weight.dim() == 1 && weight.size(0) == size) continue;
    refuse("norm_rope_qkv", fmt::format("a norm's weight is {} for qkv of {}; must be [{}], the size of a head",
                                        text_of(weight), text_of(qkv), size));
  }
}

}  // namespace
}  // namespace ops::norm_rope_op

Heads norm_rope_qkv(const at::Tensor& qkv, const HeadNorms& norms, const at::Tensor& cos, const at::Tensor& sin,
                    int64_t heads, int64_t kv_heads) {
  check_rope_qkv("norm_rope_qkv", qkv, cos, sin, heads, kv_heads);
  ops::norm_rope_op::check_norms(qkv, norms, qkv.size(-1) / (heads + 2 * kv_heads));
  const auto [q, k, v, rstd] = ops::norm_rope_op::forward(qkv, norms.q, norms.k, cos, sin, heads, kv_heads, norms.eps);
  return {q, k, v};
}

}  // namespace concord
