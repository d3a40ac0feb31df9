#include "core/ops/attention/composed_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <vector>

#include "core/ops/attention/attention_plan.h"
#include "core/ops/dropout.h"
#include "core/ops/visit_type.h"

namespace concord::ops {
namespace {

using at::Tensor;

constexpr int64_t kQueriesOfBlock = 256;
constexpr int64_t kTokens = int64_t{1} << 24;  // maximum tokens per row in the addresses of AttentionDropout

// Shapes in names: b batch, s queries, t keys, k key heads, g query heads to each of them, n size of a head.

// Returns some tokens of |x| [b, tokens, k g, n] as bkgsn, in the accumulation type.
Tensor heads_first(const Tensor& x, int64_t begin, int64_t count, int64_t kv_heads) {
  const Tensor some = x.narrow(1, begin, count);
  return some.to(sum_type(x.scalar_type())).unflatten(2, {kv_heads, -1}).permute({0, 2, 3, 1, 4});
}
// bkgsn -> [b, s, k g, n]
Tensor tokens_first(const Tensor& x_bkgsn) { return x_bkgsn.permute({0, 3, 1, 2, 4}).flatten(2, 3); }

std::vector<AttentionPiece> blocks_of(const Tensor& q, const Tensor& k, at::IntArrayRef cu_seqlens,
                                      AttentionMask mask) {
  return in_blocks(
      attention_plan(q.size(1), k.size(1), std::span<const int64_t>(cu_seqlens.data(), cu_seqlens.size()), mask),
      kQueriesOfBlock);
}

// The scores of a block, before and after the cap.
struct ScoreBlock {
  ScoreBlock(const Tensor& q, const Tensor& k, const AttentionPiece& piece, double scale, double cap)
      : q_bkgsn(heads_first(q, piece.query, piece.queries, k.size(2))),
        k_bk1tn(heads_first(k, piece.key, piece.keys, k.size(2))),
        scores_bkgst(at::matmul(q_bkgsn, k_bk1tn.transpose(-1, -2)) * (cap > 0 ? scale / cap : scale)) {
    if (cap > 0) {
      bent_bkgst = scores_bkgst.tanh();
      scores_bkgst = bent_bkgst * cap;
    }
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
  Tensor scores_bkgst;
  Tensor bent_bkgst;  // tanh; undefined without a cap
};

// Returns the dropout factors of the probabilities of a block: 0 or 1 / (1 - p). Undefined without dropout.
Tensor kept(const ScoreBlock& block, const AttentionPiece& piece, const AttentionDropout& how) {
  if (how.p == 0) return {};
  const auto sizes = block.scores_bkgst.sizes();
  const int64_t rows = sizes[0], heads = sizes[1] * sizes[2], queries = sizes[3], keys = sizes[4];
  Tensor numbers = at::empty({rows, heads, queries, keys}, block.scores_bkgst.options().dtype(at::kFloat));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t first = ((how.head + head) * kTokens + how.query + piece.query) * kTokens + how.token + piece.key;
      const Generator::State from{how.key, (how.site << 32) + static_cast<uint64_t>(how.row + row),
                                  static_cast<uint64_t>(first)};
      draw_uniform(numbers[row][head], from, {keys, kTokens});
    }
  }
  const Tensor keeps = (numbers >= static_cast<float>(how.p)).to(block.scores_bkgst.scalar_type());
  return keeps.mul(1 / (1 - how.p)).view(sizes);
}

Tensor times(const Tensor& x, const Tensor& factor) { return factor.defined() ? x * factor : x; }

}  // namespace

std::tuple<Tensor, Tensor> composed_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                              const ComposedAttention& how) {
  std::vector<Tensor> outs, sums;  // results of the blocks, in the order of queries
  for (const AttentionPiece& piece : blocks_of(q, k, how.cu_seqlens, {how.causal, how.window})) {
    const ScoreBlock block(q, k, piece, how.scale, how.cap);
    const Tensor lse_bkgs1 = at::logsumexp(block.scores_bkgst, {-1}, /*keepdim=*/true);
    const Tensor v_bk1tn = heads_first(v, piece.key, piece.keys, k.size(2));
    const Tensor p_bkgst = times((block.scores_bkgst - lse_bkgs1).exp(), kept(block, piece, how.dropout));
    outs.push_back(tokens_first(at::matmul(p_bkgst, v_bk1tn)));
    sums.push_back(lse_bkgs1.squeeze(-1).flatten(1, 2));
  }
  return {at::cat(outs, 1).to(q.scalar_type()), at::cat(sums, 2)};
}

// Like the derivative without a cap (core/ops/attention/attention.cpp), with the gradient of a score multiplied by 1 -
// tanh^2. With dropout factors m, out = (p m) v: dv = (p m)^T g, and dp = m (g v^T). The softmax subtracts from each dp
// the sum over the keys of p dp = p m (g v^T), which is g out, as without dropout.
std::tuple<Tensor, Tensor, Tensor> composed_attention_backward(const Tensor& grad, const Tensor& q, const Tensor& k,
                                                               const Tensor& v, const Tensor& out, const Tensor& lse,
                                                               const ComposedAttention& how) {
  const int64_t heads = k.size(2);
  std::vector<Tensor> dqs;
  const Tensor dk = at::zeros(k.sizes(), lse.options()), dv = at::zeros(v.sizes(), lse.options());
  for (const AttentionPiece& piece : blocks_of(q, k, how.cu_seqlens, {how.causal, how.window})) {
    const ScoreBlock block(q, k, piece, how.scale, how.cap);
    const Tensor g_bkgsn = heads_first(grad, piece.query, piece.queries, heads);
    const Tensor v_bk1tn = heads_first(v, piece.key, piece.keys, heads);
    const Tensor lse_bkgs1 = lse.narrow(2, piece.query, piece.queries).unflatten(1, {heads, -1}).unsqueeze(-1);
    const Tensor p_bkgst = (block.scores_bkgst - lse_bkgs1).exp(), kept_bkgst = kept(block, piece, how.dropout);
    const Tensor rows_bkgs1 = (g_bkgsn * heads_first(out, piece.query, piece.queries, heads)).sum(-1, true);
    const Tensor dp_bkgst = times(at::matmul(g_bkgsn, v_bk1tn.transpose(-1, -2)), kept_bkgst);
    Tensor ds_bkgst = p_bkgst * (dp_bkgst - rows_bkgs1);
    if (how.cap > 0) ds_bkgst = ds_bkgst * (1 - block.bent_bkgst.square());
    ds_bkgst = ds_bkgst * how.scale;
    dqs.push_back(tokens_first(at::matmul(ds_bkgst, block.k_bk1tn)));
    const auto add = [&](const Tensor& to, const Tensor& of_keys_bkgtn) {
      to.narrow(1, piece.key, piece.keys).add_(of_keys_bkgtn.sum(2).transpose(1, 2));
    };
    add(dk, at::matmul(ds_bkgst.transpose(-1, -2), block.q_bkgsn));
    add(dv, at::matmul(times(p_bkgst, kept_bkgst).transpose(-1, -2), g_bkgsn));
  }
  return {at::cat(dqs, 1).to(q.scalar_type()), dk.to(k.scalar_type()), dv.to(v.scalar_type())};
}

}  // namespace concord::ops
