#include "core/ops/capped_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <vector>

#include "core/ops/attention_plan.h"
#include "core/ops/derivative.h"
#include "core/ops/dispatch.h"
#include "core/ops/visit_type.h"

namespace concord::ops {
namespace capped_attention_op {
namespace {

using at::IntArrayRef;
using at::Tensor;
using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

constexpr int64_t kQueries = 256;  // of a block

// Shapes in names: b batch, s queries, t keys, k key heads, g query heads to each of them, n size of a head.

// Some tokens of |x| [b, tokens, k g, n] -> bkgsn, in the accumulation type.
Tensor heads_first(const Tensor& x, int64_t begin, int64_t count, int64_t kv_heads) {
  const Tensor some = x.narrow(1, begin, count);
  return some.to(sum_type(x.scalar_type())).unflatten(2, {kv_heads, -1}).permute({0, 2, 3, 1, 4});
}
// bkgsn -> [b, s, k g, n]
Tensor tokens_first(const Tensor& x_bkgsn) { return x_bkgsn.permute({0, 3, 1, 2, 4}).flatten(2, 3); }

std::vector<AttentionPiece> blocks_of(const Tensor& q, const Tensor& k, IntArrayRef cu_seqlens, AttentionMask mask) {
  return in_blocks(
      attention_plan(q.size(1), k.size(1), std::span<const int64_t>(cu_seqlens.data(), cu_seqlens.size()), mask),
      kQueries);
}

// The scores of a block, and what the cap made of them.
struct Block {
  Block(const Tensor& q, const Tensor& k, const AttentionPiece& piece, double scale, double cap)
      : q_bkgsn(heads_first(q, piece.query, piece.queries, k.size(2))),
        k_bk1tn(heads_first(k, piece.key, piece.keys, k.size(2))),
        bent_bkgst((at::matmul(q_bkgsn, k_bk1tn.transpose(-1, -2)) * (scale / cap)).tanh()),
        scores_bkgst(bent_bkgst * cap) {
    if (piece.sight == AttentionPiece::Sight::all) return;
    const auto numbers = at::TensorOptions(at::kLong).device(q.device());
    const Tensor key_1t = at::arange(piece.keys, numbers).unsqueeze(0);
    const Tensor last_s1 = (at::arange(piece.queries, numbers) + piece.shift).unsqueeze(1);
    Tensor seen_st = key_1t <= last_s1;
    if (piece.window > 0) seen_st = seen_st.logical_and(key_1t > last_s1 - piece.window);
    const Tensor hidden = at::zeros({}, scores_bkgst.options()) - std::numeric_limits<double>::infinity();
    scores_bkgst = at::where(seen_st, scores_bkgst, hidden);
  }
  Tensor q_bkgsn, k_bk1tn;
  Tensor bent_bkgst;  // tanh
  Tensor scores_bkgst;
};

Pair reference(const Tensor& q, const Tensor& k, const Tensor& v, IntArrayRef cu_seqlens, bool causal, int64_t window,
               double scale, double cap) {
  std::vector<Tensor> outs, sums;  // of the blocks, which are in the order of the queries
  for (const AttentionPiece& piece : blocks_of(q, k, cu_seqlens, {causal, window})) {
    const Block block(q, k, piece, scale, cap);
    const Tensor lse_bkgs1 = at::logsumexp(block.scores_bkgst, {-1}, /*keepdim=*/true);
    const Tensor v_bk1tn = heads_first(v, piece.key, piece.keys, k.size(2));
    outs.push_back(tokens_first(at::matmul((block.scores_bkgst - lse_bkgs1).exp(), v_bk1tn)));
    sums.push_back(lse_bkgs1.squeeze(-1).flatten(1, 2));
  }
  return {at::cat(outs, 1).to(q.scalar_type()), at::cat(sums, 2)};
}

// As without a cap (core/ops/attention.cpp), and what reaches a score goes on times 1 - tanh^2.
Triple reference_backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                          const Tensor& lse, IntArrayRef cu_seqlens, bool causal, int64_t window, double scale,
                          double cap) {
  const int64_t heads = k.size(2);
  std::vector<Tensor> dqs;
  const Tensor dk = at::zeros(k.sizes(), lse.options()), dv = at::zeros(v.sizes(), lse.options());
  for (const AttentionPiece& piece : blocks_of(q, k, cu_seqlens, {causal, window})) {
    const Block block(q, k, piece, scale, cap);
    const Tensor g_bkgsn = heads_first(grad, piece.query, piece.queries, heads);
    const Tensor v_bk1tn = heads_first(v, piece.key, piece.keys, heads);
    const Tensor lse_bkgs1 = lse.narrow(2, piece.query, piece.queries).unflatten(1, {heads, -1}).unsqueeze(-1);
    const Tensor p_bkgst = (block.scores_bkgst - lse_bkgs1).exp();
    const Tensor rows_bkgs1 = (g_bkgsn * heads_first(out, piece.query, piece.queries, heads)).sum(-1, true);
    const Tensor ds_bkgst = p_bkgst * (at::matmul(g_bkgsn, v_bk1tn.transpose(-1, -2)) - rows_bkgs1) *
                            (1 - block.bent_bkgst.square()) * scale;
    dqs.push_back(tokens_first(at::matmul(ds_bkgst, block.k_bk1tn)));
    const auto add = [&](const Tensor& to, const Tensor& of_keys_bkgtn) {
      to.narrow(1, piece.key, piece.keys).add_(of_keys_bkgtn.sum(2).transpose(1, 2));
    };
    add(dk, at::matmul(ds_bkgst.transpose(-1, -2), block.q_bkgsn));
    add(dv, at::matmul(p_bkgst.transpose(-1, -2), g_bkgsn));
  }
  return {at::cat(dqs, 1).to(q.scalar_type()), dk.to(k.scalar_type()), dv.to(v.scalar_type())};
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
