#include "core/ops/attention/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "core/ops/attention/attention_parts.h"
#include "core/ops/attention/attention_plan.h"
#include "core/ops/attention/attention_sinks.h"
#include "core/ops/attention/capped_attention.h"
#include "core/ops/attention/composed_attention.h"
#include "core/ops/check.h"
#include "core/ops/derivative.h"
#include "core/ops/dispatch.h"
#include "core/ops/visit_type.h"

namespace concord {
namespace ops::attention_op {
namespace {

using at::IntArrayRef;
using at::Tensor;
using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

constexpr const char* kName = "attention";
constexpr double kHidden = -std::numeric_limits<double>::infinity();

Pair forward(const Tensor& q, const Tensor& k, const Tensor& v, IntArrayRef cu_seqlens, bool causal, int64_t window,
             double scale) {
  static const auto op =
      find<Pair(const Tensor&, const Tensor&, const Tensor&, IntArrayRef, bool, int64_t, double)>("concord::attention");
  return op.call(q, k, v, cu_seqlens, causal, window, scale);
}

Triple backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                const Tensor& lse, IntArrayRef cu_seqlens, bool causal, int64_t window, double scale) {
  static const auto op = find<Triple(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                     const Tensor&, IntArrayRef, bool, int64_t, double)>("concord::attention_backward");
  return op.call(grad, q, k, v, out, lse, cu_seqlens, causal, window, scale);
}

// -------------------------------------------------------------------------------------------------------- reference
// Shapes in names: b batch, s queries, t keys, k key heads, g query heads to each of them, n size of a head. Names
// without: q and what is like it are [b, s, k g, n], k and v [b, t, k, n], lse [b, k g, s].

// [b, s, k g, n] -> bkgsn, in the accumulation type.
Tensor grouped(const Tensor& x, int64_t kv_heads) {
  const Tensor wide = x.to(sum_type(x.scalar_type()));
  return wide.reshape({x.size(0), x.size(1), kv_heads, -1, x.size(3)}).permute({0, 2, 3, 1, 4});
}

// Inverse of grouped(), in the type of |like|.
Tensor ungrouped(const Tensor& x, const Tensor& like) {
  return x.permute({0, 3, 1, 2, 4}).reshape(like.sizes()).to(like.scalar_type());
}

// Returns the mask of keys that each query sees, st; undefined: all.
Tensor sight(int64_t queries, int64_t keys, IntArrayRef cu_seqlens, bool causal, int64_t window, at::Device device) {
  const auto options = at::TensorOptions(at::kLong).device(device);
  const Tensor key = at::arange(keys, options).unsqueeze(0);
  const Tensor query = (at::arange(queries, options) + (keys - queries)).unsqueeze(1);
  Tensor seen = causal ? key <= query : key >= 0;
  if (window > 0) seen = seen.logical_and(key > query - window);
  if (cu_seqlens.empty()) return seen;
  const Tensor ends =
      at::tensor(cu_seqlens, at::kLong).to(device).narrow(0, 1, static_cast<int64_t>(cu_seqlens.size()) - 1);
  const auto sequence = [&](const Tensor& token) { return (token.unsqueeze(-1) >= ends).sum(-1); };
  return seen.logical_and(sequence(query) == sequence(key));
}

Tensor scores(const Tensor& q_bkgsn, const Tensor& k_bk1tn, const Tensor& seen_st, double scale) {
  const Tensor product_bkgst = at::matmul(q_bkgsn, k_bk1tn.transpose(-1, -2)) * scale;
  return at::where(seen_st, product_bkgst, at::zeros({}, product_bkgst.options()) + kHidden);
}

Pair reference(const Tensor& q, const Tensor& k, const Tensor& v, IntArrayRef cu_seqlens, bool causal, int64_t window,
               double scale) {
  const int64_t heads = k.size(2);
  const Tensor seen_st = sight(q.size(1), k.size(1), cu_seqlens, causal, window, q.device());
  const Tensor s_bkgst = scores(grouped(q, heads), grouped(k, heads), seen_st, scale);
  const Tensor lse_bkgs = at::logsumexp(s_bkgst, {-1});
  const Tensor out_bkgsn = at::matmul((s_bkgst - lse_bkgs.unsqueeze(-1)).exp(), grouped(v, heads));
  return {ungrouped(out_bkgsn, q), lse_bkgs.reshape({q.size(0), q.size(2), q.size(1)})};
}

// With p = softmax(s): dv = p^T grad, dp = grad v^T, ds = scale p (dp - rowsum(grad out)), dq = ds k, dk = ds^T q.
Triple reference_backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                          const Tensor& lse, IntArrayRef cu_seqlens, bool causal, int64_t window, double scale) {
  const int64_t heads = k.size(2);
  const Tensor seen_st = sight(q.size(1), k.size(1), cu_seqlens, causal, window, q.device());
  const Tensor q_bkgsn = grouped(q, heads), k_bk1tn = grouped(k, heads), v_bk1tn = grouped(v, heads),
               g_bkgsn = grouped(grad, heads);
  const Tensor lse_bkgs1 = lse.reshape({q.size(0), heads, -1, q.size(1)}).unsqueeze(-1);
  const Tensor p_bkgst = (scores(q_bkgsn, k_bk1tn, seen_st, scale) - lse_bkgs1).exp();
  const Tensor rows_bkgs1 = (g_bkgsn * grouped(out, heads)).sum(-1, /*keepdim=*/true);
  const Tensor ds_bkgst = p_bkgst * (at::matmul(g_bkgsn, v_bk1tn.transpose(-1, -2)) - rows_bkgs1) * scale;
  const Tensor dk_bk1tn = at::matmul(ds_bkgst.transpose(-1, -2), q_bkgsn).sum(2, true);
  const Tensor dv_bk1tn = at::matmul(p_bkgst.transpose(-1, -2), g_bkgsn).sum(2, true);
  return {ungrouped(at::matmul(ds_bkgst, k_bk1tn), q), ungrouped(dk_bk1tn, k), ungrouped(dv_bk1tn, v)};
}

// -------------------------------------------------------------------------------------------------------------- cpu
// libtorch's flash attention takes [batch, heads, tokens, n] in any strides. Without groups its batch is ours; with
// groups its batch is the queries of one key head, of one row of our batch, so that keys need not be copied for each
// query head.

// Returns some tokens of |x|, of row |b| of the batch (-1: all rows), in the layout of flash attention.
Tensor queries_of(const Tensor& x, int64_t b, int64_t begin, int64_t count, int64_t groups) {
  const Tensor some = x.narrow(1, begin, count);
  if (b < 0) return some.transpose(1, 2);
  return some.select(0, b).reshape({count, x.size(2) / groups, groups, x.size(3)}).permute({2, 1, 0, 3});
}

Tensor keys_of(const Tensor& x, int64_t b, int64_t begin, int64_t count, int64_t groups) {
  const Tensor some = x.narrow(1, begin, count);
  if (b < 0) return some.transpose(1, 2);
  return some.select(0, b).transpose(0, 1).unsqueeze(0).expand({groups, x.size(2), count, x.size(3)});
}

// Like queries_of(), for |lse| [B, heads, S].
Tensor rows_of(const Tensor& lse, int64_t b, int64_t begin, int64_t count, int64_t groups) {
  const Tensor some = lse.narrow(2, begin, count);
  if (b < 0) return some;
  return some.select(0, b).reshape({lse.size(1) / groups, groups, count}).transpose(0, 1);
}

std::optional<Tensor> mask_of(const AttentionPiece& piece, const Tensor& q) {
  if (piece.sight != AttentionPiece::Sight::windowed) return std::nullopt;
  const Tensor key = at::arange(piece.keys, at::kLong).unsqueeze(0);
  const Tensor last = (at::arange(piece.queries, at::kLong) + piece.shift).unsqueeze(1);
  Tensor seen = key <= last;
  if (piece.window > 0) seen = seen.logical_and(key > last - piece.window);
  const Tensor zero = at::zeros({}, q.options());
  return at::where(seen, zero, zero + kHidden).unsqueeze(0).unsqueeze(0);
}

std::vector<AttentionPiece> plan_of(const Tensor& q, const Tensor& k, IntArrayRef cu_seqlens, AttentionMask mask) {
  return attention_plan(q.size(1), k.size(1), std::span<const int64_t>(cu_seqlens.data(), cu_seqlens.size()), mask);
}

// Calls body(piece, b) for each piece and each row of the batch, or once with b = -1 for all rows.
template <class Body>
void for_pieces(const std::vector<AttentionPiece>& plan, const Tensor& q, const Tensor& k, const Body& body) {
  const int64_t rows = q.size(2) == k.size(2) ? -1 : q.size(0);
  for (const AttentionPiece& piece : plan) {
    if (rows < 0) body(piece, -1);
    for (int64_t b = 0; b < rows; ++b) body(piece, b);
  }
}

bool fits_flash(const Tensor& q, const Tensor& k, const Tensor& v) {
  const bool dense_heads = q.stride(-1) == 1 && k.stride(-1) == 1 && v.stride(-1) == 1;
  return has_loops(q.scalar_type()) && q.numel() > 0 && k.numel() > 0 && dense_heads;
}

// Calls libtorch once and returns its results unchanged.
Pair flash(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionPiece& piece, int64_t b, double scale) {
  const int64_t groups = q.size(2) / k.size(2);
  return at::_scaled_dot_product_flash_attention_for_cpu(
      queries_of(q, b, piece.query, piece.queries, groups), keys_of(k, b, piece.key, piece.keys, groups),
      keys_of(v, b, piece.key, piece.keys, groups), /*dropout_p=*/0.0, piece.sight == AttentionPiece::Sight::causal,
      mask_of(piece, q), scale);
}

Pair cpu(const Tensor& q, const Tensor& k, const Tensor& v, IntArrayRef cu_seqlens, bool causal, int64_t window,
         double scale) {
  if (!fits_flash(q, k, v)) return reference(q, k, v, cu_seqlens, causal, window, scale);
  const auto plan = plan_of(q, k, cu_seqlens, {causal, window});
  const int64_t groups = q.size(2) / k.size(2);
  if (plan.size() == 1 && groups == 1) {
    const auto [out, lse] = flash(q, k, v, plan[0], -1, scale);
    return {out.transpose(1, 2), lse};
  }
  const Tensor out = at::empty(q.sizes(), q.options());
  const Tensor lse = at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(sum_type(q.scalar_type())));
  for_pieces(plan, q, k, [&](const AttentionPiece& piece, int64_t b) {
    const auto [part, rows] = flash(q, k, v, piece, b, scale);
    queries_of(out, b, piece.query, piece.queries, groups).copy_(part);
    rows_of(lse, b, piece.query, piece.queries, groups).copy_(rows);
  });
  return {out, lse};
}

// Adds |part|, key gradients in the layout of flash attention, to those of all keys.
void add_keys(const Tensor& to, const Tensor& part, int64_t b, const AttentionPiece& piece) {
  const Tensor some = to.narrow(1, piece.key, piece.keys);
  if (b < 0) {
    some.add_(part.transpose(1, 2));
  } else {
    some.select(0, b).add_(part.sum(0).transpose(0, 1));
  }
}

struct Saved {
  const Tensor &grad, &q, &k, &v, &out, &lse;
};

Triple flash_backward(const Saved& s, const AttentionPiece& piece, int64_t b, double scale) {
  const int64_t groups = s.q.size(2) / s.k.size(2);
  const auto queries = [&](const Tensor& x) { return queries_of(x, b, piece.query, piece.queries, groups); };
  const auto keys = [&](const Tensor& x) { return keys_of(x, b, piece.key, piece.keys, groups); };
  return at::_scaled_dot_product_flash_attention_for_cpu_backward(
      queries(s.grad), queries(s.q), keys(s.k), keys(s.v), queries(s.out),
      rows_of(s.lse, b, piece.query, piece.queries, groups), /*dropout_p=*/0.0,
      piece.sight == AttentionPiece::Sight::causal, mask_of(piece, s.q), scale);
}

Triple cpu_backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                    const Tensor& lse, IntArrayRef cu_seqlens, bool causal, int64_t window, double scale) {
  if (!fits_flash(q, k, v)) {
    return reference_backward(grad, q, k, v, out, lse, cu_seqlens, causal, window, scale);
  }
  const auto plan = plan_of(q, k, cu_seqlens, {causal, window});
  const int64_t groups = q.size(2) / k.size(2);
  const Tensor g = grad.contiguous();
  const Tensor dense_out = out.contiguous();
  const Saved saved{g, q, k, v, dense_out, lse};
  if (plan.size() == 1 && groups == 1 && plan[0].keys == k.size(1)) {
    const auto [dq, dk, dv] = flash_backward(saved, plan[0], -1, scale);
    return {dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)};
  }
  const auto sums = k.options().dtype(sum_type(k.scalar_type()));
  const Tensor dq = at::empty(q.sizes(), q.options());
  const Tensor dk = at::zeros(k.sizes(), sums);  // several pieces add to a key
  const Tensor dv = at::zeros(v.sizes(), sums);
  for_pieces(plan, q, k, [&](const AttentionPiece& piece, int64_t b) {
    const auto [part_q, part_k, part_v] = flash_backward(saved, piece, b, scale);
    queries_of(dq, b, piece.query, piece.queries, groups).copy_(part_q);
    add_keys(dk, part_k, b, piece);
    add_keys(dv, part_v, b, piece);
  });
  return {dq, dk.to(k.scalar_type()), dv.to(v.scalar_type())};
}

// ------------------------------------------------------------------------------------------------------- derivative

Pair autograd(const Tensor& q, const Tensor& k, const Tensor& v, IntArrayRef cu_seqlens, bool causal, int64_t window,
              double scale) {
  Tensor sums;
  const auto run = [&] {
    const auto [out, lse] = forward(q, k, v, cu_seqlens, causal, window, scale);
    sums = lse;
    return Forward{out, {q, k, v, out, lse}};
  };
  const auto back = [cuts = cu_seqlens.vec(), causal, window, scale](const Backward& b) {
    const auto& s = b.saved;
    const auto [dq, dk, dv] = backward(b.grad, s[0], s[1], s[2], s[3], s[4], cuts, causal, window, scale);
    return Tensors{dq, dk, dv};
  };
  const Tensor out = differentiable(kName, {q, k, v}, run, back);
  return {out, sums};
}

TORCH_LIBRARY_FRAGMENT(concord, m) {
  m.def(
      "attention(Tensor q, Tensor k, Tensor v, int[] cu_seqlens, bool causal, int window, float scale) -> "
      "(Tensor out, Tensor lse)");
  m.def(
      "attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, int[] cu_seqlens, "
      "bool causal, int window, float scale) -> (Tensor dq, Tensor dk, Tensor dv)");
}
TORCH_LIBRARY_IMPL(concord, CompositeExplicitAutograd, m) {
  m.impl("attention", reference);
  m.impl("attention_backward", reference_backward);
}
TORCH_LIBRARY_IMPL(concord, CPU, m) {
  m.impl("attention", cpu);
  m.impl("attention_backward", cpu_backward);
}
TORCH_LIBRARY_IMPL(concord, Autograd, m) { m.impl("attention", autograd); }

// ----------------------------------------------------------------------------------------------------------- checks

void check(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) {
  const auto all = [&] { return fmt::format("q is {}, k {}, v {}", text_of(q), text_of(k), text_of(v)); };
  check_floating(kName, "q", q);
  check_like(kName, "k", k, q);
  check_like(kName, "v", v, q);
  if (q.dim() != 4 || k.dim() != 4 || k.sizes() != v.sizes() || q.size(0) != k.size(0) || q.size(3) != k.size(3)) {
    refuse(kName,
           fmt::format("{}; q must be [batch, queries, heads, n], k and v must be [batch, keys, kv_heads, n]", all()));
  }
  if (k.size(2) == 0 || q.size(2) % k.size(2) != 0) {
    refuse(kName, fmt::format("{} query heads cannot share {} key heads; must be a multiple ({})", q.size(2), k.size(2),
                              all()));
  }
  if (options.causal && q.size(1) > k.size(1)) {
    refuse(kName, fmt::format("{}; causal attention needs at least as many keys as queries", all()));
  }
  if (options.window < 0 || (options.window > 0 && !options.causal)) {
    refuse(kName, fmt::format("the window is {}; must be 0 for none, or > 0 and causal", options.window));
  }
  if (!(options.cap >= 0)) refuse(kName, fmt::format("the cap is {:g}; must be 0 for none, or > 0", options.cap));
  if (!(options.dropout.p >= 0 && options.dropout.p < 1)) {
    refuse(kName, fmt::format("the dropout probability is {:g}; must be >= 0 and < 1", options.dropout.p));
  }
  if (!options.sinks.defined()) return;
  check_like(kName, "sinks", options.sinks, q);
  if (options.sinks.dim() != 1 || options.sinks.size(0) != q.size(2)) {
    refuse(kName, fmt::format("sinks is {}; must be [heads] ({})", text_of(options.sinks), all()));
  }
}

double scale_of(const AttentionOptions& options, const Tensor& q) {
  return options.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3))));
}

IntArrayRef array_of(std::span<const int64_t> numbers) { return {numbers.data(), numbers.size()}; }

ComposedAttention composed(const AttentionOptions& options, IntArrayRef cu_seqlens, double scale) {
  return {cu_seqlens, options.causal, options.window, scale, options.cap, options.dropout};
}

Pair forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
             std::span<const int64_t> cu_seqlens) {
  const auto cuts = array_of(cu_seqlens);
  const double scale = scale_of(options, q);
  if (options.dropout.p > 0) return composed_attention(q, k, v, composed(options, cuts, scale));
  if (options.cap == 0) return forward(q, k, v, cuts, options.causal, options.window, scale);
  return capped_attention(q, k, v, cuts, options.causal, options.window, scale, options.cap);
}

Triple backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionForward& whole,
                const AttentionOptions& options, std::span<const int64_t> cu_seqlens) {
  const auto cuts = array_of(cu_seqlens);
  const double scale = scale_of(options, q);
  if (options.dropout.p > 0) {
    return composed_attention_backward(grad, q, k, v, whole.out, whole.lse, composed(options, cuts, scale));
  }
  if (options.cap == 0) {
    return backward(grad, q, k, v, whole.out, whole.lse, cuts, options.causal, options.window, scale);
  }
  return capped_attention_backward(grad, q, k, v, whole.out, whole.lse, cuts, options.causal, options.window, scale,
                                   options.cap);
}

// Attention with dropout and its derivative, which the composed operators do not provide.
Tensor forward_with_dropout(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
                            std::span<const int64_t> cu_seqlens) {
  const auto run = [&] {
    const auto [out, lse] = forward(q, k, v, options, cu_seqlens);
    return Forward{out, {q, k, v, out, lse}};
  };
  const auto back = [options, cuts = std::vector<int64_t>(cu_seqlens.begin(), cu_seqlens.end())](const Backward& b) {
    const auto& s = b.saved;
    const auto [dq, dk, dv] = backward(b.grad, s[0], s[1], s[2], {s[3], s[4]}, options, cuts);
    return Tensors{dq, dk, dv};
  };
  return differentiable("attention with dropout", {q, k, v}, run, back);
}

// Runs attention without sinks and applies the sinks to its result.
Tensor forward_with_sinks(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
                          std::span<const int64_t> cu_seqlens) {
  const auto run = [&] {
    const auto [out, lse] = forward(q, k, v, options, cu_seqlens);
    const AttentionForward whole = with_sinks({out, lse}, options.sinks);
    return Forward{whole.out, {q, k, v, options.sinks, whole.out, whole.lse}};
  };
  AttentionOptions rest = options;
  rest.sinks = Tensor();
  const auto back = [rest, cuts = std::vector<int64_t>(cu_seqlens.begin(), cu_seqlens.end())](const Backward& b) {
    const auto& s = b.saved;
    const AttentionForward whole{s[4], s[5]};
    const auto [dq, dk, dv] = backward(b.grad, s[0], s[1], s[2], whole, rest, cuts);
    return Tensors{dq, dk, dv, sinks_grad(b.grad, whole, s[3])};
  };
  return differentiable("attention with sinks", {q, k, v, options.sinks}, run, back);
}

Tensor autograd_with_sinks(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& sinks,
                           IntArrayRef cu_seqlens, bool causal, int64_t window, double scale) {
  const AttentionOptions options{.causal = causal, .window = window, .scale = scale, .sinks = sinks};
  return forward_with_sinks(q, k, v, options, std::span<const int64_t>(cu_seqlens.data(), cu_seqlens.size()));
}

// libtorch's derivative of this needs that of the log-sum-exp, which the operator attention does not have.
Tensor reference_with_sinks(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& sinks,
                            IntArrayRef cu_seqlens, bool causal, int64_t window, double scale) {
  const auto [out, lse] = needs_derivative({q, k, v, sinks}) ? reference(q, k, v, cu_seqlens, causal, window, scale)
                                                             : forward(q, k, v, cu_seqlens, causal, window, scale);
  return with_sinks({out, lse}, sinks).out;
}

Tensor attention_with_sinks(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
                            std::span<const int64_t> cu_seqlens) {
  if (options.cap != 0 || options.dropout.p != 0) return forward_with_sinks(q, k, v, options, cu_seqlens);
  using Signature =
      Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, IntArrayRef, bool, int64_t, double);
  static const auto op = find<Signature>("concord::attention_with_sinks");
  return op.call(q, k, v, options.sinks, array_of(cu_seqlens), options.causal, options.window, scale_of(options, q));
}

TORCH_LIBRARY_FRAGMENT(concord, m) {
  m.def(
      "attention_with_sinks(Tensor q, Tensor k, Tensor v, Tensor sinks, int[] cu_seqlens, bool causal, int window, "
      "float scale) -> Tensor");
}
TORCH_LIBRARY_IMPL(concord, CompositeExplicitAutograd, m) { m.impl("attention_with_sinks", reference_with_sinks); }
TORCH_LIBRARY_IMPL(concord, Autograd, m) { m.impl("attention_with_sinks", autograd_with_sinks); }

void check_packed(const Tensor& q, const Tensor& k, std::span<const int64_t> cu_seqlens) {
  if (cu_seqlens.empty()) return;
  check_cu_seqlens(kName, cu_seqlens, q.size(1));
  if (q.size(0) != 1 || k.size(1) != q.size(1)) {
    refuse(kName, fmt::format("packed sequences must be one row with as many keys as queries; q is {}, k {}",
                              text_of(q), text_of(k)));
  }
}

}  // namespace
}  // namespace ops::attention_op

void check_cu_seqlens(const char* op, std::span<const int64_t> cu_seqlens, int64_t tokens) {
  if (cu_seqlens.size() < 2 || cu_seqlens[0] != 0) {
    ops::refuse(op, fmt::format("cu_seqlens is [{}]; must start at 0 and have one more number per sequence",
                                fmt::join(cu_seqlens, ", ")));
  }
  for (size_t i = 1; i < cu_seqlens.size(); ++i) {
    if (cu_seqlens[i] >= cu_seqlens[i - 1]) continue;
    ops::refuse(op,
                fmt::format("cu_seqlens[{}] is {} after {}; must not decrease", i, cu_seqlens[i], cu_seqlens[i - 1]));
  }
  if (cu_seqlens.back() != tokens) {
    ops::refuse(op, fmt::format("cu_seqlens ends at {}, but there are {} tokens", cu_seqlens.back(), tokens));
  }
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& options,
                     std::span<const int64_t> cu_seqlens) {
  const bool flat = !cu_seqlens.empty() && q.defined() && k.defined() && v.defined() && q.dim() == 3;
  if (flat) return attention(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), options, cu_seqlens).squeeze(0);
  ops::attention_op::check(q, k, v, options);
  ops::attention_op::check_packed(q, k, cu_seqlens);
  if (options.sinks.defined()) return ops::attention_op::attention_with_sinks(q, k, v, options, cu_seqlens);
  if (options.dropout.p > 0) return ops::attention_op::forward_with_dropout(q, k, v, options, cu_seqlens);
  return std::get<0>(ops::attention_op::forward(q, k, v, options, cu_seqlens));
}

AttentionForward attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   const AttentionOptions& options, std::span<const int64_t> cu_seqlens) {
  ops::attention_op::check(q, k, v, options);
  ops::attention_op::check_packed(q, k, cu_seqlens);
  const at::NoGradGuard no_grad;
  auto [out, lse] = ops::attention_op::forward(q, k, v, options, cu_seqlens);
  return {out, lse};
}

AttentionBackward attention_backward(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k,
                                     const at::Tensor& v, const AttentionForward& whole,
                                     const AttentionOptions& options, std::span<const int64_t> cu_seqlens) {
  ops::attention_op::check(q, k, v, options);
  ops::attention_op::check_packed(q, k, cu_seqlens);
  const at::NoGradGuard no_grad;
  auto [dq, dk, dv] = ops::attention_op::backward(grad, q, k, v, whole, options, cu_seqlens);
  return {dq, dk, dv};
}

}  // namespace concord
