#include "core/ops/attention/attention_sinks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/logaddexp.h>

namespace concord::ops {

// Shapes in names: b batch, s queries, h heads, n size of a head.

using at::Tensor;

namespace {
Tensor as_scores(const Tensor& sinks_h, const Tensor& lse_bhs) {
  return sinks_h.to(lse_bhs.scalar_type()).view({1, -1, 1});
}
}  // namespace

AttentionForward with_sinks(const AttentionForward& parts, const Tensor& sinks_h) {
  const Tensor lse_bhs = at::logaddexp(parts.lse, as_scores(sinks_h, parts.lse));
  const Tensor share_bsh1 = (parts.lse - lse_bhs).exp().transpose(1, 2).unsqueeze(-1);
  return {(parts.out * share_bsh1).to(parts.out.scalar_type()), lse_bhs};
}

// p times (0 - sum of grad out), with the probability p of the sink, as for the score of any key with value 0.
Tensor sinks_grad(const Tensor& grad_bshn, const AttentionForward& whole, const Tensor& sinks_h) {
  const Tensor p_bhs = (as_scores(sinks_h, whole.lse) - whole.lse).exp();
  const Tensor rows_bsh = (grad_bshn.to(p_bhs.scalar_type()) * whole.out.to(p_bhs.scalar_type())).sum(-1);
  return -(p_bhs * rows_bsh.transpose(1, 2)).sum(at::IntArrayRef{0, 2}).to(sinks_h.scalar_type());
}

}  // namespace concord::ops
