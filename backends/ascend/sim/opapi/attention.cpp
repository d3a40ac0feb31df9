// Fused attention, forward and backward, with sinks or without, in the layouts BSH, SBH, BSND, BNSD and, for packed
// sequences, TND; and the update of one result with another, for ring attention. Computed in float32 on [batch, heads,
// rows, width], whatever the layout.
#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/maximum.h>
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
  OptionalTensor mask;       // true hides; a triangle of 2048 by 2048 in the modes that only name a shape
  OptionalTensor sink = {};  // [heads]: the score of one more key per head, whose value is 0
};

Tensor sink_score(const Rule& rule) { return rule.sink->to(at::kFloat).view({1, -1, 1, 1}); }

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
  Tensor peak = all.amax(-1, true);
  if (rule.sink) peak = at::maximum(peak, sink_score(rule));
  const Tensor largest = at::where(peak.isinf(), at::zeros_like(peak), peak);
  const Tensor weights = (all - largest).exp();
  Tensor total = weights.sum(-1, true);
  if (rule.sink) total = total + (sink_score(rule) - largest).exp();
  const Tensor sum = at::where(total == 0, at::ones_like(total), total);
  return {at::matmul(weights / sum, shared(v, times)), largest, sum};
}

struct Backward {
  Tensor q, k, v;
  Tensor sink;  // undefined without
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
  const Tensor row = (gradient * whole.result).sum(-1, true);
  const Tensor ds = p * (dp - row) * rule.scale;
  const Tensor sink =
      rule.sink ? -((sink_score(rule) - whole.largest).exp() / whole.sum * row).sum({0, 2, 3}) : Tensor();
  return {at::matmul(ds, keys), summed(at::matmul(ds.transpose(-1, -2), q), times),
          summed(at::matmul(p.transpose(-1, -2), gradient), times), sink};
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

// ------------------------------------------------------------------------------------- operators with their arguments

namespace {

void check_softmax_layout(const std::string& layout) {
  if (!layout.empty())
    throw OperatorError(kAclnnParamInvalid, "statistics in layout '" + layout + "' are not simulated");
}

// What every version of the forward operator has. Statistics of rows are written eight times each, as by the hardware.
struct ForwardCall {
  const Tensor &query, &key, &value;
  const std::string& layout;
  int64_t heads;
  const Rule& rule;

  void run(const Out& row_max, const Out& row_sum, const Out& out) const {
    const int64_t width = width_of(query, heads);
    const Forward done =
        forward(to_heads(query, layout, width), to_heads(key, layout, width), to_heads(value, layout, width), rule);
    row_max = done.largest.expand_as(*row_max);
    row_sum = done.sum.expand_as(*row_sum);
    out = from_heads(done.result, layout);
  }
  void run_packed(const Packed& packed, const Out& row_max, const Out& row_sum, const Out& out) const {
    check_packed(layout);
    packed.for_each([&](Packed::Range q, Packed::Range kv) {
      const Forward done = forward(q.heads(query), kv.heads(key), kv.heads(value), rule);
      q.statistics(*row_max).copy_(done.largest.expand({-1, -1, -1, row_max->size(-1)}));
      q.statistics(*row_sum).copy_(done.sum.expand({-1, -1, -1, row_sum->size(-1)}));
      q.write(*out, done.result);
    });
  }
};

struct BackwardCall {
  const Tensor &query, &key, &value, &gradient, &row_max, &row_sum, &result;
  const std::string& layout;
  int64_t heads;
  const Rule& rule;

  // Returns the gradient of the sinks.
  Tensor run(const Out& dq, const Out& dk, const Out& dv) const {
    const int64_t width = width_of(query, heads);
    const Backward done =
        backward(to_heads(query, layout, width), to_heads(key, layout, width), to_heads(value, layout, width),
                 to_heads(gradient, layout, width),
                 Whole{to_heads(result, layout, width), row_max.narrow(-1, 0, 1), row_sum.narrow(-1, 0, 1)}, rule);
    dq = from_heads(done.q, layout);
    dk = from_heads(done.k, layout);
    dv = from_heads(done.v, layout);
    return done.sink;
  }
  Tensor run_packed(const Packed& packed, const Out& dq, const Out& dk, const Out& dv) const {
    check_packed(layout);
    Tensor sinks;
    packed.for_each([&](Packed::Range q, Packed::Range kv) {
      const Whole whole{q.heads(result), q.statistics(row_max).narrow(-1, 0, 1),
                        q.statistics(row_sum).narrow(-1, 0, 1)};
      const Backward done = backward(q.heads(query), kv.heads(key), kv.heads(value), q.heads(gradient), whole, rule);
      q.write(*dq, done.q);
      kv.write(*dk, done.k);
      kv.write(*dv, done.v);
      if (done.sink.defined()) sinks = sinks.defined() ? sinks + done.sink : done.sink;
    });
    return sinks;
  }
};

void refuse_positions(const std::optional<Ints>& q_start, const std::optional<Ints>& kv_start, int64_t pse_type) {
  if ((q_start && !q_start->empty()) || (kv_start && !kv_start->empty()) || pse_type != 1) {
    throw OperatorError(kAclnnParamInvalid, "positions of attention are not simulated");
  }
}

bool is_given(const std::optional<Ints>& list) { return list && !list->empty(); }

}  // namespace

// Formatted by hand: clang-format breaks every operator over several lines.
// clang-format off
OPERATOR(FlashAttentionScore,
         (Tensor query, Tensor key, Tensor value, OptionalTensor shift, OptionalTensor, OptionalTensor padding,
          OptionalTensor mask, std::optional<Ints>, double scale, double keep, int64_t before, int64_t after,
          int64_t heads, std::string layout, int64_t, int64_t mode, Out row_max, Out row_sum, std::optional<Out>,
          Out out) {
  refuse_extras(shift, padding, keep);
  ForwardCall{query, key, value, layout, heads, Rule{scale, before, after, mode, mask}}.run(row_max, row_sum, out);
})

OPERATOR(FlashAttentionScoreGrad,
         (Tensor query, Tensor key, Tensor value, Tensor gradient, OptionalTensor shift, OptionalTensor,
          OptionalTensor padding, OptionalTensor mask, Tensor row_max, Tensor row_sum, OptionalTensor, Tensor result,
          std::optional<Ints>, double scale, double keep, int64_t before, int64_t after, int64_t heads,
          std::string layout, int64_t, int64_t mode, Out dq, Out dk, Out dv, std::optional<Out>) {
  refuse_extras(shift, padding, keep);
  BackwardCall{query, key, value, gradient, row_max, row_sum, result, layout, heads,
               Rule{scale, before, after, mode, mask}}.run(dq, dk, dv);
})

OPERATOR(FlashAttentionVarLenScore,
         (Tensor query, Tensor key, Tensor value, OptionalTensor shift, OptionalTensor, OptionalTensor padding,
          OptionalTensor mask, std::optional<Ints>, Ints q_ends, Ints kv_ends, double scale, double keep,
          int64_t before, int64_t after, int64_t heads, std::string layout, int64_t, int64_t mode, Out row_max,
          Out row_sum, std::optional<Out>, Out out) {
  refuse_extras(shift, padding, keep);
  ForwardCall{query, key, value, layout, heads, Rule{scale, before, after, mode, mask}}.run_packed(
      Packed{q_ends, kv_ends}, row_max, row_sum, out);
})

OPERATOR(FlashAttentionUnpaddingScoreGrad,
         (Tensor query, Tensor key, Tensor value, Tensor gradient, OptionalTensor shift, OptionalTensor,
          OptionalTensor padding, OptionalTensor mask, Tensor row_max, Tensor row_sum, OptionalTensor, Tensor result,
          std::optional<Ints>, Ints q_ends, Ints kv_ends, double scale, double keep, int64_t before, int64_t after,
          int64_t heads, std::string layout, int64_t, int64_t mode, Out dq, Out dk, Out dv, std::optional<Out>) {
  refuse_extras(shift, padding, keep);
  BackwardCall{query, key, value, gradient, row_max, row_sum, result, layout, heads,
               Rule{scale, before, after, mode, mask}}.run_packed(Packed{q_ends, kv_ends}, dq, dk, dv);
})

// With sinks.
OPERATOR(FlashAttentionScoreV3,
         (Tensor query, Tensor key, Tensor value, OptionalTensor shift, OptionalTensor, OptionalTensor padding,
          OptionalTensor mask, OptionalTensor sink, std::optional<Ints>, std::optional<Ints> q_start,
          std::optional<Ints> kv_start, double scale, double keep, int64_t before, int64_t after, int64_t heads,
          std::string layout, int64_t, int64_t mode, int64_t pse_type, Out row_max, Out row_sum, std::optional<Out>,
          Out out) {
  refuse_extras(shift, padding, keep);
  refuse_positions(q_start, kv_start, pse_type);
  ForwardCall{query, key, value, layout, heads, Rule{scale, before, after, mode, mask, sink}}.run(row_max, row_sum, out);
})

OPERATOR(FlashAttentionScoreGradV3,
         (Tensor query, Tensor key, Tensor value, Tensor gradient, OptionalTensor shift, OptionalTensor,
          OptionalTensor padding, OptionalTensor mask, Tensor row_max, Tensor row_sum, OptionalTensor, Tensor result,
          OptionalTensor sink, std::optional<Ints>, std::optional<Ints> q_start, std::optional<Ints> kv_start,
          double scale, double keep, int64_t before, int64_t after, int64_t heads, std::string layout, int64_t,
          int64_t mode, int64_t pse_type, Out dq, Out dk, Out dv, std::optional<Out>, std::optional<Out> dsink) {
  refuse_extras(shift, padding, keep);
  refuse_positions(q_start, kv_start, pse_type);
  const Tensor sinks = BackwardCall{query, key, value, gradient, row_max, row_sum, result, layout, heads,
                                    Rule{scale, before, after, mode, mask, sink}}.run(dq, dk, dv);
  if (sink) *dsink = sinks;
})

OPERATOR(FlashAttentionVarLenScoreV5,
         (Tensor query, OptionalTensor query_rope, Tensor key, OptionalTensor key_rope, Tensor value,
          OptionalTensor shift, OptionalTensor, OptionalTensor padding, OptionalTensor mask, OptionalTensor sink,
          std::optional<Ints>, Ints q_ends, Ints kv_ends, std::optional<Ints> q_start, std::optional<Ints> kv_start,
          double scale, double keep, int64_t before, int64_t after, int64_t heads, std::string layout, int64_t,
          int64_t mode, int64_t pse_type, std::string softmax_layout, Out row_max, Out row_sum, std::optional<Out>,
          Out out) {
  refuse_extras(query_rope ? query_rope : shift, key_rope ? key_rope : padding, keep);
  refuse_positions(q_start, kv_start, pse_type);
  check_softmax_layout(softmax_layout);
  ForwardCall{query, key, value, layout, heads, Rule{scale, before, after, mode, mask, sink}}.run_packed(
      Packed{q_ends, kv_ends}, row_max, row_sum, out);
})

OPERATOR(FlashAttentionUnpaddingScoreGradV5,
         (Tensor query, OptionalTensor query_rope, Tensor key, OptionalTensor key_rope, Tensor value, Tensor gradient,
          OptionalTensor shift, OptionalTensor, OptionalTensor padding, OptionalTensor mask, Tensor row_max,
          Tensor row_sum, OptionalTensor, Tensor result, OptionalTensor sink, std::optional<Ints>, Ints q_ends,
          Ints kv_ends, std::optional<Ints> q_start, std::optional<Ints> kv_start, double scale, double keep,
          int64_t before, int64_t after, int64_t heads, std::string layout, int64_t, int64_t mode, int64_t pse_type,
          std::string softmax_layout, Out dq, std::optional<Out>, Out dk, std::optional<Out>, Out dv,
          std::optional<Out>, std::optional<Out> dsink) {
  refuse_extras(query_rope ? query_rope : shift, key_rope ? key_rope : padding, keep);
  refuse_positions(q_start, kv_start, pse_type);
  check_softmax_layout(softmax_layout);
  const Tensor sinks = BackwardCall{query, key, value, gradient, row_max, row_sum, result, layout, heads,
                                    Rule{scale, before, after, mode, mask, sink}}.run_packed(Packed{q_ends, kv_ends},
                                                                                              dq, dk, dv);
  if (sink) *dsink = sinks;
})

// What torch_npu calls on the Ascend950, packed or not.
OPERATOR(FlashAttentionScoreV4,
         (Tensor query, Tensor key, Tensor value, OptionalTensor shift, OptionalTensor, OptionalTensor padding,
          OptionalTensor mask, OptionalTensor query_rope, OptionalTensor key_rope, OptionalTensor q_scale,
          OptionalTensor k_scale, OptionalTensor v_scale, OptionalTensor sink, std::optional<Ints>,
          std::optional<Ints> q_ends, std::optional<Ints> kv_ends, std::optional<Ints> q_start,
          std::optional<Ints> kv_start, double scale, double keep, int64_t before, int64_t after, int64_t heads,
          std::string layout, int64_t, int64_t mode, int64_t, int64_t pse_type, std::string softmax_layout, int64_t,
          int64_t, Out row_max, Out row_sum, std::optional<Out>, Out out) {
  for (const OptionalTensor* each : {&query_rope, &key_rope, &q_scale, &k_scale, &v_scale, &sink}) {
    refuse_extras(*each, {}, 1);
  }
  refuse_extras(shift, padding, keep);
  refuse_positions(q_start, kv_start, pse_type);
  check_softmax_layout(softmax_layout);
  const Rule rule{scale, before, after, mode, mask};
  const ForwardCall call{query, key, value, layout, heads, rule};
  if (is_given(q_ends)) return call.run_packed(Packed{*q_ends, *kv_ends}, row_max, row_sum, out);
  call.run(row_max, row_sum, out);
})

OPERATOR(FlashAttentionScoreGradV4,
         (Tensor query, Tensor key, Tensor value, Tensor gradient, OptionalTensor shift, OptionalTensor,
          OptionalTensor padding, OptionalTensor mask, Tensor row_max, Tensor row_sum, OptionalTensor, Tensor result,
          OptionalTensor sink, OptionalTensor query_rope, OptionalTensor key_rope, OptionalTensor q_scale,
          OptionalTensor k_scale, OptionalTensor v_scale, OptionalTensor dy_scale, OptionalTensor out_scale,
          std::optional<Ints>, std::optional<Ints> q_ends, std::optional<Ints> kv_ends, std::optional<Ints> q_start,
          std::optional<Ints> kv_start, double scale, double keep, int64_t before, int64_t after, int64_t heads,
          std::string layout, std::string softmax_layout, int64_t, int64_t mode, int64_t pse_type, int64_t, int64_t,
          int64_t, Out dq, Out dk, Out dv, std::optional<Out>, std::optional<Out>, std::optional<Out>,
          std::optional<Out>) {
  for (const OptionalTensor* each : {&sink, &query_rope, &key_rope, &q_scale, &k_scale, &v_scale, &dy_scale,
                                     &out_scale}) {
    refuse_extras(*each, {}, 1);
  }
  refuse_extras(shift, padding, keep);
  refuse_positions(q_start, kv_start, pse_type);
  check_softmax_layout(softmax_layout);
  const Rule rule{scale, before, after, mode, mask};
  const BackwardCall call{query, key, value, gradient, row_max, row_sum, result, layout, heads, rule};
  if (is_given(q_ends)) {
    call.run_packed(Packed{*q_ends, *kv_ends}, dq, dk, dv);
  } else {
    call.run(dq, dk, dv);
  }
})

// The attention over the keys of both, from its parts; |ends| are those of packed sequences, from 0.
OPERATOR(RingAttentionUpdateV2,
         (Tensor own, Tensor own_max, Tensor own_sum, Tensor more, Tensor more_max, Tensor more_sum,
          OptionalTensor ends, std::string layout, std::string statistics, Out out, Out row_max, Out row_sum) {
  const Tensor top = at::maximum(own_max, more_max);
  const Tensor own_part = own_sum * (own_max - top).exp(), more_part = more_sum * (more_max - top).exp();
  const Tensor both = own_part + more_part;
  // The values [batch, heads, rows, width] of both; |rows| picks those of the statistics.
  const auto mixed = [&](const Tensor& a, const Tensor& b, const auto& rows) {
    return a.to(at::kFloat) * rows(own_part / both) + b.to(at::kFloat) * rows(more_part / both);
  };
  row_max = top;
  row_sum = both;
  if (layout == "SBH") {
    const int64_t width = own.size(2) / own_max.size(1);
    out = from_heads(mixed(to_heads(own, layout, width), to_heads(more, layout, width),
                           [](const Tensor& x) { return x.narrow(-1, 0, 1); }), layout);
    return;
  }
  for (int64_t i = 1; i < ends->numel(); ++i) {
    const Packed::Range range{(*ends)[i - 1].item<int64_t>(), (*ends)[i].item<int64_t>()};
    const auto rows = [&](const Tensor& x) {
      const Tensor of_heads = statistics == "TND" ? range.heads(x) : range.statistics(x);
      return of_heads.narrow(-1, 0, 1);
    };
    range.write(*out, mixed(range.heads(own), range.heads(more), rows));
  }
})

// clang-format on
}  // namespace concord::ascend::sim
