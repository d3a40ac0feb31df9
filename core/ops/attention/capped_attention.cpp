#include "core/ops/attention/capped_attention.h"

#include "core/ops/attention/composed_attention.h"
#include "core/ops/derivative.h"
#include "core/ops/dispatch.h"

namespace concord::ops {
namespace capped_attention_op {
namespace {

using at::IntArrayRef;
using at::Tensor;
using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

ComposedAttention settings(IntArrayRef cu_seqlens, bool causal, int64_t window, double scale, double cap) {
  return {.cu_seqlens = cu_seqlens, .causal = causal, .window = window, .scale = scale, .cap = cap};
}

Pair reference(const Tensor& q, const Tensor& k, const Tensor& v, IntArrayRef cu_seqlens, bool causal, int64_t window,
               double scale, double cap) {
  return composed_attention(q, k, v, settings(cu_seqlens, causal, window, scale, cap));
}

Triple reference_backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                          const Tensor& lse, IntArrayRef cu_seqlens, bool causal, int64_t window, double scale,
                          double cap) {
  return composed_attention_backward(grad, q, k, v, out, lse, settings(cu_seqlens, causal, window, scale, cap));
}

Pair autograd(const Tensor& q, const Tensor& k, const Tensor& v, IntArrayRef cu_seqlens, bool causal, int64_t window,
              double scale, double cap) {
  Tensor sums;
  const auto run = [&] {
    const auto [out, lse] = capped_attention(q, k, v, cu_seqlens, causal, window, scale, cap);
    sums = lse;
    return Forward{out, {q, k, v, out, lse}};
  };
  const auto back = [cuts = cu_seqlens.vec(), causal, window, scale, cap](const Backward& b) {
    const auto& s = b.saved;
    const auto [dq, dk, dv] =
        capped_attention_backward(b.grad, s[0], s[1], s[2], s[3], s[4], cuts, causal, window, scale, cap);
    return Tensors{dq, dk, dv};
  };
  const Tensor out = differentiable("capped_attention", {q, k, v}, run, back);
  return {out, sums};
}

TORCH_LIBRARY_FRAGMENT(concord, m) {
  m.def(
      "capped_attention(Tensor q, Tensor k, Tensor v, int[] cu_seqlens, bool causal, int window, float scale, "
      "float cap) -> (Tensor out, Tensor lse)");
  m.def(
      "capped_attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, int[] cu_seqlens, "
      "bool causal, int window, float scale, float cap) -> (Tensor dq, Tensor dk, Tensor dv)");
}
TORCH_LIBRARY_IMPL(concord, CompositeExplicitAutograd, m) {
  m.impl("capped_attention", reference);
  m.impl("capped_attention_backward", reference_backward);
}
TORCH_LIBRARY_IMPL(concord, Autograd, m) { m.impl("capped_attention", autograd); }

}  // namespace
}  // namespace capped_attention_op

std::tuple<at::Tensor, at::Tensor> capped_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                    at::IntArrayRef cu_seqlens, bool causal, int64_t window,
                                                    double scale, double cap) {
  using namespace capped_attention_op;
  static const auto op =
      find<Pair(const Tensor&, const Tensor&, const Tensor&, IntArrayRef, bool, int64_t, double, double)>(
          "concord::capped_attention");
  return op.call(q, k, v, cu_seqlens, causal, window, scale, cap);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> capped_attention_backward(const at::Tensor& grad, const at::Tensor& q,
                                                                         const at::Tensor& k, const at::Tensor& v,
                                                                         const at::Tensor& out, const at::Tensor& lse,
                                                                         at::IntArrayRef cu_seqlens, bool causal,
                                                                         int64_t window, double scale, double cap) {
  using namespace capped_attention_op;
  static const auto op =
      find<Triple(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, IntArrayRef,
                  bool, int64_t, double, double)>("concord::capped_attention_backward");
  return op.call(grad, q, k, v, out, lse, cu_seqlens, causal, window, scale, cap);
}

}  // namespace concord::ops
