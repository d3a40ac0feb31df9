#include "core/ops/attention/cached_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "core/ops/check.h"
#include "core/ops/dispatch.h"
#include "core/ops/visit_type.h"

namespace concord {
namespace ops::cached_attention_op {
namespace {

using at::Tensor;

constexpr const char* kName = "cached_attention";

using Sinks = std::optional<Tensor>;

Tensor call(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths, int64_t window, double scale,
            double cap, const Sinks& sinks) {
  static const auto op =
      find<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t, double, double, const Sinks&)>(
          "concord::cached_attention");
  return op.call(q, k, v, lengths, window, scale, cap, sinks);
}

// Shapes in names: b rows, t keys, k key heads, g query heads to each of them, n size of a head.
Tensor reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths, int64_t window, double scale,
                 double cap, const Sinks& sinks) {
  const auto sums = sum_type(q.scalar_type());
  const Tensor q_bkgn = q.to(sums).reshape({q.size(0), k.size(2), -1, q.size(3)});
  const Tensor k_bknt = k.to(sums).permute({0, 2, 3, 1});
  const Tensor v_bktn = v.to(sums).transpose(1, 2);
  const Tensor key_t = at::arange(k.size(1), lengths.options());
  const Tensor end_b1 = lengths.unsqueeze(1);
  Tensor seen_bt = key_t < end_b1;
  if (window > 0) seen_bt = seen_bt.logical_and(key_t >= end_b1 - window);
  const Tensor hidden = at::zeros({}, q_bkgn.options()) - std::numeric_limits<double>::infinity();
  Tensor scores_bkgt = at::matmul(q_bkgn, k_bknt) * scale;
  if (cap > 0) scores_bkgt = (scores_bkgt / cap).tanh() * cap;
  scores_bkgt = at::where(seen_bt.unsqueeze(1).unsqueeze(1), scores_bkgt, hidden);
  // A probability of 0 times an uninitialised NaN would be NaN.
  const Tensor values_bktn = at::where(seen_bt.unsqueeze(1).unsqueeze(-1), v_bktn, at::zeros({}, v_bktn.options()));
  if (sinks) {
    const Tensor sinks_bkg1 = sinks->to(sums).view({1, k.size(2), -1, 1}).expand({q.size(0), -1, -1, -1});
    scores_bkgt = at::cat({scores_bkgt, sinks_bkg1}, -1);
  }
  const Tensor p_bkgt = at::softmax(scores_bkgt, -1).narrow(-1, 0, k.size(1));
  return at::matmul(p_bkgt, values_bktn).reshape(q.sizes()).to(q.scalar_type());
}

// Processes row by row; each reads only its own keys.
Tensor cpu(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths, int64_t window, double scale,
           double cap, const Sinks& sinks) {
  const AttentionOptions options{.causal = true, .scale = scale, .cap = cap, .sinks = sinks.value_or(Tensor())};
  const Tensor out = at::empty_like(q, at::MemoryFormat::Contiguous);
  const Tensor ends = lengths.contiguous();
  for (int64_t b = 0; b < q.size(0); ++b) {
    const int64_t end = ends.const_data_ptr<int64_t>()[b];
    const int64_t begin = window > 0 ? std::max<int64_t>(0, end - window) : 0;
    const auto keys = [&](const Tensor& x) { return x.narrow(0, b, 1).narrow(1, begin, end - begin); };
    out.narrow(0, b, 1).copy_(attention(q.narrow(0, b, 1), keys(k), keys(v), options));
  }
  return out;
}

TORCH_LIBRARY_FRAGMENT(concord, m) {
  m.def(
      "cached_attention(Tensor q, Tensor k, Tensor v, Tensor lengths, int window, float scale, float cap, "
      "Tensor? sinks) -> Tensor");
}
TORCH_LIBRARY_IMPL(concord, CompositeExplicitAutograd, m) { m.impl("cached_attention", reference); }
TORCH_LIBRARY_IMPL(concord, CPU, m) { m.impl("cached_attention", cpu); }

void check(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths, const AttentionOptions& options) {
  check_floating(kName, "q", q);
  check_like(kName, "k", k, q);
  check_like(kName, "v", v, q);
  const auto all = [&] {
    return fmt::format("q is {}, k {}, v {}, lengths {}", text_of(q), text_of(k), text_of(v), text_of(lengths));
  };
  const bool fits = q.dim() == 4 && k.dim() == 4 && q.size(1) == 1 && k.sizes() == v.sizes() &&
                    q.size(0) == k.size(0) && q.size(3) == k.size(3) && k.size(2) > 0 && q.size(2) % k.size(2) == 0;
  if (!fits) {
    refuse(kName, fmt::format("{}; q must be [batch, 1, heads, n], k and v must be [batch, keys, kv_heads, n], heads a "
                              "multiple of kv_heads",
                              all()));
  }
  const bool is_length = lengths.defined() && lengths.scalar_type() == at::kLong && lengths.dim() == 1 &&
                         lengths.size(0) == q.size(0) && lengths.device() == q.device();
  if (!is_length) refuse(kName, fmt::format("{}; lengths must be Long [batch] on the device of q", all()));
  if (options.window < 0) refuse(kName, fmt::format("the window is {}; must be 0 for none, or > 0", options.window));
  if (options.sinks.defined() && (options.sinks.dim() != 1 || options.sinks.size(0) != q.size(2))) {
    refuse(kName, fmt::format("sinks is {}; must be [heads] ({})", text_of(options.sinks), all()));
  }
}

}  // namespace
}  // namespace ops::cached_attention_op

at::Tensor cached_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& lengths,
                            const AttentionOptions& options) {
  ops::cached_attention_op::check(q, k, v, lengths, options);
  const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3))));
  const auto sinks = options.sinks.defined() ? std::optional(options.sinks) : std::nullopt;
  return ops::cached_attention_op::call(q, k, v, lengths, options.window, scale, options.cap, sinks);
}

}  // namespace concord
