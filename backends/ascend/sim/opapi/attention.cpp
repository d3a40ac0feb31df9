// Fused attention, forward and backward, in the layouts BSH, SBH, BSND, BNSD and, for packed sequences, TND. Computed
// in float32 on [batch, heads, rows, width], whatever the layout.
#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

#include "backends/ascend/sim/opapi/operator.h"

namespace concord::ascend::sim {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

namespace {

// Which pairs of a row and a column take part.
struct Rule {
  double scale;
  int64_t before, after;  // keys that a row attends to before and after it, in the modes that use them
  int64_t mode;
  OptionalTensor mask;  // true hides; a triangle of 2048 by 2048 in the modes that only name a shape
};

constexpr int64_t kCompressed = 2048;

// What a row may not see, as [rows, columns] or broader; undefined if nothing is hidden.
Tensor hidden(const Rule& rule, int64_t rows, int64_t columns) {
  const Tensor row = at::arange(rows, at::kLong).unsqueeze(1);
  const Tensor column = at::arange(columns, at::kLong);
  const auto outside = [&](int64_t shift, int64_t before, int64_t after) {
    return at::logical_or(column > row + shift + after, column < row + shift - before);
  };
  constexpr int64_t kFar = std::numeric_limits<int32_t>::max();
  if (rule.mode >= 2 && rule.mode <= 4) {
    if (!rule.mask.has_value() || rule.mask->size(-1) != kCompressed || rule.mask->size(-2) != kCompressed) {
      throw OperatorError(kAclnnParamInvalid,
                          "sparse mode " + std::to_string(rule.mode) + " needs a mask of 2048 x 2048");
    }
    if (rule.mode == 2) return outside(0, kFar, 0);
    if (rule.mode == 3) return outside(columns - rows, kFar, 0);
    return outside(columns - rows, rule.before, rule.after);
  }
  if (rule.mode != 0 && rule.mode != 1) {
    throw OperatorError(kAclnnParamInvalid,
                        "sparse mode " + std::to_string(rule.mode) + " is not simulated: 0 to 4 are");
  }
  if (!rule.mask.has_value()) return {};
  const Tensor given = rule.mask->to(at::kBool).slice(-2, 0, rows).slice(-1, 0, columns);
  return rule.mode == 1 ? given : at::logical_or(given, outside(0, rule.before, rule.after));
}

// [batch, heads, rows, columns], hidden ones at minus infinity.
Tensor scores(const Tensor& q, const Tensor& k, const Rule& rule) {
  const Tensor all = at::matmul(q, k.transpose(-1, -2)) * rule.scale;
  const Tensor mask = hidden(rule, q.size(-2), k.size(-2));
  return mask.defined() ? all.masked_fill(mask, -std::numeric_limits<float>::infinity()) : all;
}

// Keys and values have fewer heads than queries; each serves this many query heads.
Tensor shared(const Tensor& tensor, int64_t times) { return tensor.repeat_interleave(times, 1); }
Tensor summed(const Tensor& tensor, int64_t times) {
  return tensor.view({tensor.size(0), tensor.size(1) / times, times, tensor.size(2), tensor.size(3)}).sum(2);
}

struct Forward {
  Tensor result;
  Tensor largest, sum;  // per row: [batch, heads, rows, 1]
};

// A row that sees nothing gives zeros.
Forward forward(const Tensor& q, const Tensor& k, const Tensor& v, const Rule& rule) {
  const int64_t times = q.size(1) / k.size(1);
  const Tensor all = scores(q, shared(k, times), rule);
  const Tensor peak = all.amax(-1, true);
  const Tensor largest = at::where(peak.isinf(), at::zeros_like(peak), peak);
  const Tensor weights = (all - largest).exp();
  const Tensor total = weights.sum(-1, true);
  const Tensor sum = at::where(total == 0, at::ones_like(total), total);
  return {at::matmul(weights / sum, shared(v, times)), largest, sum};
}

struct Backward {
  Tensor q, k, v;
};

// |result| and the statistics are those of all keys, even if |k| and |v| are only some of them, as in ring
// attention.
struct Whole {
  Tensor result, largest, sum;
};

Backward backward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gradient, const Whole& whole,
                  const Rule& rule) {
  const int64_t times = q.size(1) / k.size(1);
  const Tensor keys = shared(k, times);
  const Tensor p = (scores(q, keys, rule) - whole.largest).exp() / whole.sum;
  const Tensor dp = at::matmul(gradient, shared(v, times).transpose(-1, -2));
  const Tensor ds = p * (dp - (gradient * whole.result).sum(-1, true)) * rule.scale;
  return {at::matmul(ds, keys), summed(at::matmul(ds.transpose(-1, -2), q), times),
          summed(at::matmul(p.transpose(-1, -2), gradient), times)};
}

// ---------------------------------------------------------------------------------------------------------- layouts

[[noreturn]] void refuse_layout(const std::string& layout) {
  throw OperatorError(kAclnnParamInvalid, "layout '" + layout + "' is not simulated: BSH, SBH, BSND, BNSD, TND are");
}

// To float32 [batch, heads, rows, width]; |width| is needed if the layout does not show it.
Tensor to_heads(const Tensor& tensor, const std::string& layout, int64_t width) {
  const Tensor t = tensor.to(at::kFloat);
  if (layout == "BNSD") return t;
  if (layout == "BSND") return t.transpose(1, 2);
  if (layout == "BSH") return t.unflatten(2, {-1, width}).transpose(1, 2);
  if (layout == "SBH") return t.unflatten(2, {-1, width}).permute({1, 2, 0, 3});
  refuse_layout(layout);
}

Tensor from_heads(const Tensor& tensor, const std::string& layout) {
  if (layout == "BNSD") return tensor;
  if (layout == "BSND") return tensor.transpose(1, 2);
  if (layout == "BSH") return tensor.transpose(1, 2).flatten(2);
  if (layout == "SBH") return tensor.permute({2, 0, 1, 3}).flatten(2);
  refuse_layout(layout);
}

int64_t width_of(const Tensor& q, int64_t heads) { return q.dim() == 3 ? q.size(2) / heads : q.size(3); }

void refuse_extras(const OptionalTensor& shift, const OptionalTensor& padding, double keep_probability) {
  if (shift.has_value() || padding.has_value() || keep_probability != 1.0) {
    throw OperatorError(kAclnnParamInvalid, "position shift, padding mask and dropout of attention are not simulated");
  }
}

// Sequences one after another in [tokens, heads, width]; |ends| are the sums of their lengths.
struct Packed {
  const Ints& q_ends;
  const Ints& kv_ends;

  template <class Body>
  void for_each(Body body) const {
    if (q_ends.size() != kv_ends.size())
      throw OperatorError(kAclnnParamInvalid, "the numbers of query and key lengths must be equal");
    for (size_t i = 0; i < q_ends.size(); ++i) {
      const int64_t q_begin = i == 0 ? 0 : q_ends[i - 1];
      const int64_t kv_begin = i == 0 ? 0 : kv_ends[i - 1];
      body(Range{q_begin, q_ends[i]}, Range{kv_begin, kv_ends[i]});
    }
  }

  // The tokens of one sequence.
  struct Range {
    int64_t begin, end;
    Tensor of(const Tensor& packed) const { return packed.slice(0, begin, end); }
    // As float32 [1, heads, rows, width].
    Tensor heads(const Tensor& packed) const { return of(packed).to(at::kFloat).transpose(0, 1).unsqueeze(0); }
    void write(const Tensor& packed, const Tensor& heads) const { of(packed).copy_(heads.squeeze(0).transpose(0, 1)); }
    // Statistics of rows are declared as [tokens, heads, 8], but the hardware puts [heads, rows, 8] of one sequence
    // after the other there. As [1, heads, rows, 8], a view.
    Tensor statistics(const Tensor& packed) const {
      const int64_t heads = packed.size(1);
      return packed.view({-1, packed.size(2)})
          .slice(0, begin * heads, end * heads)
          .view({1, heads, end - begin, packed.size(2)});
    }
  };
};

void check_packed(const std::string& layout) {
  if (layout != "TND")
    throw OperatorError(kAclnnParamInvalid, "packed sequences have layout TND, not '" + layout + "'");
}

}  // namespace

// ------------------------------------------------------------------------------------------------------- operators

// Formatted by hand: clang-format breaks every operator over several lines.
// clang-format off
// The row statistics are written eight times each, as the hardware does.
OPERATOR(FlashAttentionScore,
         (Tensor query, Tensor key, Tensor value, OptionalTensor shift, OptionalTensor, OptionalTensor padding,
          OptionalTensor mask, std::optional<Ints>, double scale, double keep, int64_t before, int64_t after,
          int64_t heads, std::string layout, int64_t, int64_t mode, Out row_max, Out row_sum, std::optional<Out>,
          Out out) {
  refuse_extras(shift, padding, keep);
  const int64_t width = width_of(query, heads);
  const Forward done = forward(to_heads(query, layout, width), to_heads(key, layout, width),
                               to_heads(value, layout, width), Rule{scale, before, after, mode, mask});
  row_max = done.largest.expand_as(*row_max);
  row_sum = done.sum.expand_as(*row_sum);
  out = from_heads(done.result, layout);
})

OPERATOR(FlashAttentionScoreGrad,
         (Tensor query, Tensor key, Tensor value, Tensor gradient, OptionalTensor shift, OptionalTensor,
          OptionalTensor padding, OptionalTensor mask, Tensor row_max, Tensor row_sum, OptionalTensor, Tensor result,
          std::optional<Ints>, double scale, double keep, int64_t before, int64_t after, int64_t heads,
          std::string layout, int64_t, int64_t mode, Out dq, Out dk, Out dv, std::optional<Out>) {
  refuse_extras(shift, padding, keep);
  const int64_t width = width_of(query, heads);
  const Backward done =
      backward(to_heads(query, layout, width), to_heads(key, layout, width), to_heads(value, layout, width),
               to_heads(gradient, layout, width),
               Whole{to_heads(result, layout, width), row_max.narrow(-1, 0, 1), row_sum.narrow(-1, 0, 1)},
               Rule{scale, before, after, mode, mask});
  dq = from_heads(done.q, layout);
  dk = from_heads(done.k, layout);
  dv = from_heads(done.v, layout);
})

OPERATOR(FlashAttentionVarLenScore,
         (Tensor query, Tensor key, Tensor value, OptionalTensor shift, OptionalTensor, OptionalTensor padding,
          OptionalTensor mask, std::optional<Ints>, Ints q_ends, Ints kv_ends, double scale, double keep,
          int64_t before, int64_t after, int64_t, std::string layout, int64_t, int64_t mode, Out row_max, Out row_sum,
          std::optional<Out>, Out out) {
  refuse_extras(shift, padding, keep);
  check_packed(layout);
  Packed{q_ends, kv_ends}.for_each([&](Packed::Range q, Packed::Range kv) {
    const Rule rule{scale, before, after, mode, mask};
    const Forward done = forward(q.heads(query), kv.heads(key), kv.heads(value), rule);
    q.statistics(*row_max).copy_(done.largest.expand({-1, -1, -1, row_max->size(-1)}));
    q.statistics(*row_sum).copy_(done.sum.expand({-1, -1, -1, row_sum->size(-1)}));
    q.write(*out, done.result);
  });
})

OPERATOR(FlashAttentionUnpaddingScoreGrad,
         (Tensor query, Tensor key, Tensor value, Tensor gradient, OptionalTensor shift, OptionalTensor,
          OptionalTensor padding, OptionalTensor mask, Tensor row_max, Tensor row_sum, OptionalTensor, Tensor result,
          std::optional<Ints>, Ints q_ends, Ints kv_ends, double scale, double keep, int64_t before, int64_t after,
          int64_t, std::string layout, int64_t, int64_t mode, Out dq, Out dk, Out dv, std::optional<Out>) {
  refuse_extras(shift, padding, keep);
  check_packed(layout);
  Packed{q_ends, kv_ends}.for_each([&](Packed::Range q, Packed::Range kv) {
    const Backward done =
        backward(q.heads(query), kv.heads(key), kv.heads(value), q.heads(gradient),
                 Whole{q.heads(result), q.statistics(row_max).narrow(-1, 0, 1), q.statistics(row_sum).narrow(-1, 0, 1)},
                 Rule{scale, before, after, mode, mask});
    q.write(*dq, done.q);
    kv.write(*dk, done.k);
    kv.write(*dv, done.v);
  });
})

// clang-format on
}  // namespace concord::ascend::sim
