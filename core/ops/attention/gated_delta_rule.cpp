#include "core/ops/attention/gated_delta_rule.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/core.h>

#include <array>
#include <bit>
#include <cmath>

#include "core/ops/attention/packed_sequences.h"
#include "core/ops/check.h"
#include "core/ops/derivative.h"
#include "core/ops/dispatch.h"
#include "core/ops/visit_type.h"

namespace concord {
namespace ops::gated_delta_rule_op {
namespace {

using at::IntArrayRef;
using at::matmul;
using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
using Pair = std::tuple<Tensor, Tensor>;
using Five = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

constexpr const char* kName = "gated_delta_rule";
constexpr int64_t kMaxChunk = 64;
constexpr double kEps = 1e-6;  // added to the squared lengths of q and k

// Within a chunk, for one head: q, k [c, n], v [c, m], beta [c], the sums of g up to each token l [c], e = exp(l), D_ij
// = exp(l_i - l_j) for j <= i. The rows of X are what tokens write to the state:
//
//   x_i = beta_i (v_i - e_i S^T k_i - sum_{j<i} D_ij (k_i k_j) x_j),  so (1 + A) X = beta (v - e k S)
//   with A_ij = beta_i (k_i k_j) D_ij for j < i.   T = (1 + A)^-1,  X = U - W S,  U = T beta v,  W = T beta e k
//   out = e q S + P X,  P_ij = (q_i k_j) D_ij for j <= i
//   S  <- exp(l_c) S + (exp(l_c - l) k)^T X

Tensor flipped(const Tensor& x) { return x.transpose(-1, -2); }

// (1 + a)^-1 of a strictly lower |a| [..., c, c], c a power of two: from the inverses of diagonal blocks to those of
// twice the size. With b the parts of |a| between two blocks of a pair, b d b = 0, so (1/d + b)^-1 = d - d b d.
Tensor unit_lower_inverse(const Tensor& a) {
  const int64_t size = a.size(-1);
  const Tensor number = at::arange(size, at::TensorOptions(at::kLong).device(a.device()));
  Tensor inverse = at::eye(size, a.options());
  for (int64_t half = 1; half < size; half *= 2) {
    const Tensor block = number.div(half, "floor"), pair = number.div(2 * half, "floor");
    const Tensor between =
        block.unsqueeze(1).ne(block.unsqueeze(0)).logical_and(pair.unsqueeze(1).eq(pair.unsqueeze(0)));
    inverse = inverse - matmul(matmul(inverse, a * between), inverse);
  }
  return inverse;
}

int64_t chunk_of(int64_t tokens) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::min(tokens, kMaxChunk))));
}

// [B, S, heads or fewer, n] -> [B, heads, chunks, c, n]; zeros at the end have no effect.
Tensor in_chunks(const Tensor& x, int64_t heads) {
  const int64_t tokens = x.size(1), chunk = chunk_of(tokens), missing = (chunk - tokens % chunk) % chunk;
  Tensor first = x.transpose(1, 2);
  if (x.size(2) != heads) first = first.repeat_interleave(heads / x.size(2), 1);
  return at::constant_pad_nd(first, {0, 0, 0, missing}).unflatten(2, {-1, chunk}).contiguous();
}
// Inverse of in_chunks(); sums over heads that share a key.
Tensor in_tokens(const Tensor& x, int64_t tokens, int64_t heads) {
  Tensor flat = x.flatten(2, 3).narrow(2, 0, tokens);
  if (x.size(1) != heads) flat = flat.unflatten(1, {heads, -1}).sum(2);
  return flat.transpose(1, 2);
}

Tensor wide(const Tensor& x) { return x.to(sum_type(x.scalar_type())); }
Tensor inverse_length(const Tensor& x) { return (x * x).sum(-1, /*keepdim=*/true).add(kEps).rsqrt(); }
Tensor unit(const Tensor& x) { return x * inverse_length(x); }
// Returns the gradient of x from that of y = x / |x|.
Tensor unit_backward(const Tensor& dy, const Tensor& x) {
  const Tensor inverse = inverse_length(x), y = x * inverse;
  return inverse * (dy - y * (y * dy).sum(-1, /*keepdim=*/true));
}

struct Inputs {
  Tensor q, k, v, g, beta;

  Inputs part(const TokenRange& range) const {
    const auto some = [&](const Tensor& x) { return x.narrow(1, range.begin, range.tokens); };
    return {some(q), some(k), some(v), some(g), some(beta)};
  }
  double scale() const { return 1 / std::sqrt(static_cast<double>(q.size(-1))); }
};

// Everything that does not depend on the state, for all chunks at once.
struct Chunks {
  explicit Chunks(const Inputs& in)
      : heads(in.v.size(2)),
        q(in_chunks(unit(wide(in.q)) * in.scale(), heads)),
        k(in_chunks(unit(wide(in.k)), heads)),
        v(in_chunks(wide(in.v), heads)),
        beta(in_chunks(in.beta.unsqueeze(-1), heads)) {
    const Tensor g = in_chunks(in.g.unsqueeze(-1), heads);
    const int64_t last = g.size(-2) - 1;
    // Computes the sums from each token to each later one directly: differences of prefix sums, which may be a thousand
    // times as large, would cancel.
    const Tensor between = g.expand({-1, -1, -1, -1, last + 1}).tril(-1).cumsum(-2);
    since_start = g.cumsum(-2).exp();
    until_end = flipped(between.narrow(-2, last, 1)).exp();
    whole = since_start.narrow(-2, last, 1);
    decay = between.exp().tril();
    scores = matmul(q, flipped(k)) * decay;
    mixing = (matmul(k, flipped(k)) * decay * beta).tril(-1);
    inverse = unit_lower_inverse(mixing);
    written = matmul(inverse, beta * v);
    read = matmul(inverse, beta * since_start * k);
    kept = k * until_end;
  }
  int64_t count() const { return q.size(2); }

  int64_t heads;
  Tensor q, k, v, beta;                   // [B, heads, chunks, c, n], .. n], .. m], .. 1]
  Tensor since_start, until_end, whole;   // e, exp(l_c - l), exp(l_c): [.., c, 1], the last one [.., 1, 1]
  Tensor decay, scores, mixing, inverse;  // D, P, A, T: [.., c, c]
  Tensor written, read, kept;             // U, W, exp(l_c - l) k
};

// The states before each chunk, X, and the final state.
struct Scan {
  Tensor states, x, last;
};

Scan scan(const Chunks& c, Tensor state) {
  std::vector<Tensor> states, x;
  for (int64_t i = 0; i < c.count(); ++i) {
    states.push_back(state);
    x.push_back(c.written.select(2, i) - matmul(c.read.select(2, i), state));
    state = state * c.whole.select(2, i) + matmul(flipped(c.kept.select(2, i)), x.back());
  }
  return {at::stack(states, 2), at::stack(x, 2), state};
}

Tensor no_state(const Inputs& in) {
  return at::zeros({in.v.size(0), in.v.size(2), in.k.size(3), in.v.size(3)}, wide(in.v).options());
}

Pair of_one(const Inputs& in, const Tensor& state) {
  const Chunks c(in);
  const Scan s = scan(c, state);
  const Tensor out = matmul(c.q * c.since_start, s.states) + matmul(c.scores, s.x);
  return {in_tokens(out, in.v.size(1), c.heads).to(in.v.scalar_type()), s.last};
}

Pair reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const Tensor& beta,
               const MaybeTensor& state, IntArrayRef cu_seqlens) {
  const Inputs all{q, k, v, g, beta};
  std::vector<Tensor> out, last;
  for (const TokenRange& range : sequences(v.size(1), cu_seqlens)) {
    const Inputs in = all.part(range);
    const auto [part, after] = of_one(in, state ? *state : no_state(in));
    out.push_back(part);
    last.push_back(after);
  }
  return {at::cat(out, 1), at::cat(last, 0)};
}

// Gradients of X and of the states after each chunk, from the last chunk to the first.
struct BackwardScan {
  Tensor dx, dstates;
};

BackwardScan scan_backward(const Chunks& c, const Tensor& dout) {
  const Tensor dx_of_out = matmul(flipped(c.scores), dout), dstate_of_out = matmul(flipped(c.q * c.since_start), dout);
  std::vector<Tensor> dx(static_cast<size_t>(c.count())), dstates(dx.size());
  Tensor dstate = at::zeros_like(dstate_of_out.select(2, 0));  // no gradient after the last chunk
  for (int64_t i = c.count() - 1; i >= 0; --i) {
    const auto place = static_cast<size_t>(i);
    dstates[place] = dstate;
    dx[place] = dx_of_out.select(2, i) + matmul(c.kept.select(2, i), dstate);
    dstate =
        dstate * c.whole.select(2, i) + dstate_of_out.select(2, i) - matmul(flipped(c.read.select(2, i)), dx[place]);
  }
  return {at::stack(dx, 2), at::stack(dstates, 2)};
}

Tensor rows(const Tensor& x) { return x.sum(-1, /*keepdim=*/true); }
// Returns the sum of each row and all later ones.
Tensor sums_from(const Tensor& x) { return x.flip({-2}).cumsum(-2).flip({-2}); }

Inputs of_one_backward(const Tensor& grad, const Inputs& in) {
  const Chunks c(in);
  const Scan s = scan(c, no_state(in));
  const Tensor dout = in_chunks(wide(grad), c.heads);
  const BackwardScan d = scan_backward(c, dout);
  // X = T beta Y, Y = v - e Z, Z = k S
  const Tensor z = matmul(c.k, s.states), y = c.v - c.since_start * z;
  const Tensor dby = matmul(flipped(c.inverse), d.dx), dy = c.beta * dby, dz = -c.since_start * dy;
  const Tensor da = -matmul(dby, flipped(s.x)).tril(-1), dscores = matmul(dout, flipped(s.x)).tril();
  const Tensor dq_read = matmul(dout, flipped(s.states)) * c.since_start;        // through e q
  const Tensor dk_kept = matmul(s.x, flipped(d.dstates)) * c.until_end;          // through exp(l_c - l) k
  const Tensor products = c.decay * c.beta * da, of_scores = c.decay * dscores;  // d (k k^T), d (q k^T)
  const Tensor dq = dq_read + matmul(of_scores, c.k);
  const Tensor dk = dk_kept + matmul(dz, flipped(s.states)) + matmul(flipped(of_scores), c.q) +
                    matmul(products + flipped(products), c.k);
  const Tensor dbeta = rows(dby * y) + rows(da * matmul(c.k, flipped(c.k)) * c.decay);
  // Gradients of the sums of g between two tokens, in D and in exp(l_c - l), which is a part of its last row; and from
  // the start.
  const Tensor of_pairs = sums_from(da * c.mixing + dscores * c.scores) + flipped(rows(dk_kept * c.k));
  const Tensor from_start = rows(dq_read * c.q) + rows(dz * z);
  const Tensor of_whole = c.whole * (s.states * d.dstates).sum(at::IntArrayRef{-2, -1}, true);
  const Tensor dg = rows(of_pairs.tril(-1)) + sums_from(from_start) + of_whole;
  const int64_t tokens = in.v.size(1), key_heads = in.k.size(2);
  const auto of_unit = [&](const Tensor& dx, const Tensor& x, double scale) {
    return unit_backward(in_tokens(dx, tokens, key_heads) * scale, wide(x)).to(x.scalar_type());
  };
  return {of_unit(dq, in.q, in.scale()), of_unit(dk, in.k, 1), in_tokens(dy, tokens, c.heads).to(in.v.scalar_type()),
          in_tokens(dg, tokens, c.heads).squeeze(-1), in_tokens(dbeta, tokens, c.heads).squeeze(-1)};
}

Five reference_backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                        const Tensor& beta, IntArrayRef cu_seqlens) {
  const Inputs all{q, k, v, g, beta};
  std::array<std::vector<Tensor>, 5> parts;
  for (const TokenRange& range : sequences(v.size(1), cu_seqlens)) {
    const Inputs d = of_one_backward(grad.narrow(1, range.begin, range.tokens), all.part(range));
    const std::array each{d.q, d.k, d.v, d.g, d.beta};
    for (size_t i = 0; i < parts.size(); ++i) parts[i].push_back(each[i]);
  }
  const auto whole = [&](size_t i) { return at::cat(parts[i], 1); };
  return {whole(0), whole(1), whole(2), whole(3), whole(4)};
}

Pair forward_op(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const Tensor& beta,
                const MaybeTensor& state, IntArrayRef cu_seqlens) {
  static const auto op = find<Pair(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                   const MaybeTensor&, IntArrayRef)>("concord::gated_delta_rule");
  return op.call(q, k, v, g, beta, state, cu_seqlens);
}

Five backward_op(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                 const Tensor& beta, IntArrayRef cu_seqlens) {
  static const auto op =
      find<Five(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, IntArrayRef)>(
          "concord::gated_delta_rule_backward");
  return op.call(grad, q, k, v, g, beta, cu_seqlens);
}

Pair autograd(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const Tensor& beta,
              const MaybeTensor& state, IntArrayRef cu_seqlens) {
  const Tensors inputs{q, k, v, g, beta};
  if (state && needs_derivative(inputs)) refuse(kName, "a state to begin with has no derivative");
  Tensor last;
  const auto run = [&] {
    const auto [out, after] = forward_op(q, k, v, g, beta, state, cu_seqlens);
    last = after;
    return Forward{out, inputs};
  };
  const auto back = [cuts = cu_seqlens.vec()](const Backward& b) {
    const auto& s = b.saved;
    const auto [dq, dk, dv, dg, dbeta] = backward_op(b.grad, s[0], s[1], s[2], s[3], s[4], cuts);
    return Tensors{dq, dk, dv, dg, dbeta};
  };
  const Tensor out = differentiable(kName, inputs, run, back);
  return {out, last};
}

TORCH_LIBRARY_FRAGMENT(concord, m) {
  m.def(
      "gated_delta_rule(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor? state, int[] cu_seqlens) -> "
      "(Tensor out, Tensor last)");
  m.def(
      "gated_delta_rule_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, int[] cu_seqlens) "
      "-> (Tensor dq, Tensor dk, Tensor dv, Tensor dg, Tensor dbeta)");
}
TORCH_LIBRARY_IMPL(concord, CompositeExplicitAutograd, m) {
  m.impl("gated_delta_rule", reference);
  m.impl("gated_delta_rule_backward", reference_backward);
}
TORCH_LIBRARY_IMPL(concord, Autograd, m) { m.impl("gated_delta_rule", autograd); }

void check(const Inputs& in, const Tensor& state, IntArrayRef cu_seqlens) {
  check_floating(kName, "q", in.q);
  check_like(kName, "k", in.k, in.q);
  check_like(kName, "v", in.v, in.q);
  const auto sums = sum_type(in.q.scalar_type());
  const bool has_dims = in.q.dim() == 4 && in.v.dim() == 4 && in.v.numel() > 0 && in.q.numel() > 0;
  const bool fits = has_dims && in.k.sizes() == in.q.sizes() && in.v.size(0) == in.q.size(0) &&
                    in.v.size(1) == in.q.size(1) && in.v.size(2) % in.q.size(2) == 0;
  if (!fits) {
    refuse(kName, fmt::format("q is {}, k {}, v {}; must be [B, S, key heads, n] twice and [B, S, heads, m], not "
                              "empty, key heads dividing heads",
                              text_of(in.q), text_of(in.k), text_of(in.v)));
  }
  for (const Tensor* gate : {&in.g, &in.beta}) {
    if (gate->defined() && gate->sizes() == in.v.sizes().slice(0, 3) && gate->scalar_type() == sums) continue;
    refuse(kName, fmt::format("g is {} and beta {}; must be [B, S, heads] in {}, v is {}", text_of(in.g),
                              text_of(in.beta), c10::toString(sums), text_of(in.v)));
  }
  check_packed(kName, in.v, cu_seqlens);
  if (!state.defined()) return;
  if (cu_seqlens.empty() && state.scalar_type() == sums && state.sizes() == no_state(in).sizes()) return;
  refuse(kName, fmt::format("state is {}; must be [B, heads, n, m] in {}, without packed sequences", text_of(state),
                            c10::toString(sums)));
}

}  // namespace
}  // namespace ops::gated_delta_rule_op

DeltaRule gated_delta_rule(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& g,
                           const at::Tensor& beta, const at::Tensor& state, at::IntArrayRef cu_seqlens) {
  using namespace ops::gated_delta_rule_op;
  check({q, k, v, g, beta}, state, cu_seqlens);
  const auto [out, last] =
      forward_op(q, k, v, g, beta, state.defined() ? MaybeTensor(state) : std::nullopt, cu_seqlens);
  return {out, last};
}

}  // namespace concord
