#include "core/ops/attention/attention_parts.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/logaddexp.h>
#include <fmt/core.h>

#include <cmath>
#include <tuple>

#include "core/ops/check.h"
#include "core/ops/dispatch.h"

namespace concord {
namespace ops::attention_part_op {
namespace {

using at::Tensor;
using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

// Shapes in names: b batch, s queries, h heads, n size of a head.

Triple reference(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, double scale) {
  using Signature = Pair(const Tensor&, const Tensor&, const Tensor&, at::IntArrayRef, bool, int64_t, double);
  static const auto op = find<Signature>("concord::attention");
  const auto [out, lse] = op.call(q, k, v, {}, causal, /*window=*/0, scale);
  return {out, lse, Tensor()};
}

Triple reference_merge(const Tensor& out_bshn, const Tensor& lse_bhs, const Tensor&, const Tensor& more_bshn,
                       const Tensor& more_lse_bhs, const Tensor&) {
  const Tensor both_bhs = at::logaddexp(lse_bhs, more_lse_bhs);
  const auto share_bsh1 = [&](const Tensor& lse) { return lse.sub(both_bhs).exp_().transpose(1, 2).unsqueeze(-1); };
  const Tensor rest = more_bshn.mul(share_bsh1(more_lse_bhs));
  return {out_bshn.mul(share_bsh1(lse_bhs)).add_(rest), both_bhs, Tensor()};
}

Tensor reference_log_sum(const Tensor& largest, const Tensor& sum) {
  return sum.defined() ? largest + sum.log() : largest;
}

// Not operators of the library "concord": the statistics are in a layout of the device, so that kernels are compared by
// what the parts make together.
TORCH_LIBRARY(concord_parts, m) {
  m.def(
      "attention_part(Tensor q, Tensor k, Tensor v, bool causal, float scale) -> (Tensor out, Tensor largest, Tensor "
      "sum)");
  m.def(
      "attention_merge(Tensor out, Tensor largest, Tensor sum, Tensor more, Tensor more_largest, Tensor more_sum) -> "
      "(Tensor out, Tensor largest, Tensor sum)");
  m.def("attention_log_sum(Tensor largest, Tensor sum) -> Tensor");
}
TORCH_LIBRARY_IMPL(concord_parts, CompositeExplicitAutograd, m) {
  m.impl("attention_part", reference);
  m.impl("attention_merge", reference_merge);
  m.impl("attention_log_sum", reference_log_sum);
}

}  // namespace
}  // namespace ops::attention_part_op

AttentionPart AttentionPart::queries(int64_t begin, int64_t count) const {
  const auto some = [&](const at::Tensor& rows) { return rows.defined() ? rows.narrow(2, begin, count) : rows; };
  return {out.narrow(1, begin, count), some(largest), some(sum)};
}

AttentionPart attention_part(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const AttentionOptions& options) {
  if (options.window != 0) {
    ops::refuse("attention_part", fmt::format("the window is {}; parts have none", options.window));
  }
  if (options.cap != 0 || options.dropout.p != 0) {
    const AttentionForward whole = attention_forward(q, k, v, options);
    return {whole.out, whole.lse, at::Tensor()};
  }
  using Signature = std::tuple<at::Tensor, at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&,
                                                                   const at::Tensor&, bool, double);
  static const auto op = ops::find<Signature>("concord_parts::attention_part");
  const at::NoGradGuard no_grad;
  const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3))));
  const auto [out, largest, sum] = op.call(q, k, v, options.causal, scale);
  return {out, largest, sum};
}

AttentionPart merged(const AttentionPart& part, const AttentionPart& more) {
  using Signature = std::tuple<at::Tensor, at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&);
  static const auto op = ops::find<Signature>("concord_parts::attention_merge");
  const auto [out, largest, sum] = op.call(part.out, part.largest, part.sum, more.out, more.largest, more.sum);
  return {out, largest, sum};
}

AttentionForward as_forward(const AttentionPart& part) {
  static const auto op =
      ops::find<at::Tensor(const at::Tensor&, const at::Tensor&)>("concord_parts::attention_log_sum");
  return {part.out, op.call(part.largest, part.sum)};
}

}  // namespace concord
