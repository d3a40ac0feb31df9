// Samples of attention at real sizes (samples.h): long enough for the kernels that devices have for long sequences, and
// each head size that has its own kernel.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <limits>

#include "core/ops/attention/attention.h"
#include "core/ops/attention/attention_parts.h"
#include "core/ops/testing/samples.h"

namespace concord::ops::testing {
namespace {

using Arguments = std::vector<c10::IValue>;
using Outputs = std::vector<at::Tensor>;

// B batch, S queries, T keys, N query heads, K key heads, n size of a head.
struct AttentionSize {
  int64_t B, S, T, N, K, n;
  bool causal = true;
  int64_t window = 0;
  std::vector<int64_t> cuts = {};
  bool fused = false;  // q, k and v are parts of one tensor, like the output of a fused projection
};

// Scores have a deviation of 2, so that a query attends to some keys much more than to others: with even weights a
// result would be a mean of thousands of values, too small compared with the rounding of its terms to show an error.
Arguments draw_qkv(const AttentionSize& size, Draw& draw, c10::ScalarType type) {
  at::Tensor q = draw.normal({size.B, size.S, size.N, size.n}, type, 2);
  at::Tensor k = draw.normal({size.B, size.T, size.K, size.n}, type);
  at::Tensor v = draw.normal({size.B, size.T, size.K, size.n}, type);
  if (size.fused) {
    const at::Tensor all = at::empty({size.B, size.S, size.N + 2 * size.K, size.n}, type);
    q = all.narrow(2, 0, size.N).copy_(q);
    k = all.narrow(2, size.N, size.K).copy_(k);
    v = all.narrow(2, size.N + size.K, size.K).copy_(v);
  }
  return {q, k, v, size.cuts, size.causal, size.window, 1 / std::sqrt(static_cast<double>(size.n))};
}

// ------------------------------------------------------------------------------------------------------------- bounds

// [B, tokens, heads, n] -> [B, N, tokens, n]: a key head once for each of the query heads that share it.
at::Tensor for_each_head(const at::Tensor& x, int64_t heads) {
  return x.repeat_interleave(heads / x.size(2), 2).transpose(1, 2);
}

// Inverse of for_each_head(): the sum over the query heads that share a key head.
at::Tensor over_group(const at::Tensor& x, const at::Tensor& like) {
  return x.reshape({x.size(0), like.size(2), -1, x.size(2), x.size(3)}).sum(2).transpose(1, 2);
}

// The terms of the bounds, in fp64. |first| is the index of q in the arguments, |numbers| that of the first argument
// after the tensors. |sinks| [N] are scores of one more key per head, or undefined.
struct ExactScores {
  ExactScores(const Arguments& a, size_t first, size_t numbers, c10::ScalarType type, const at::Tensor& sinks = {})
      : q(for_each_head(a[first].toTensor(), a[first].toTensor().size(2))),
        k(for_each_head(a[first + 1].toTensor(), q.size(1))),
        v(for_each_head(a[first + 2].toTensor(), q.size(1))),
        scale(a[numbers + 3].toDouble()) {
    const at::Tensor seen = seen_keys(a[numbers].toIntVector(), a[numbers + 1].toBool(), a[numbers + 2].toInt());
    const at::Tensor s = at::matmul(q, k.transpose(-1, -2)) * scale;
    const at::Tensor hidden = at::tensor(-std::numeric_limits<double>::infinity(), s.options());
    p = at::where(seen, s, hidden);
    if (sinks.defined()) p = at::cat({p, sinks.view({1, -1, 1, 1}).expand({p.size(0), -1, p.size(2), 1})}, -1);
    p = p.softmax(-1).narrow(-1, 0, k.size(2));
    // A score is a sum of n products. Its scale, the subtracted largest score and the exponential add some error.
    const double terms = at::matmul(q.abs(), k.abs().transpose(-1, -2)).amax().item<double>() * scale;
    off = (roundings_of_sum(q.size(3)) + 8) * sum_unit(type) * terms;
  }

  at::Tensor seen_keys(const std::vector<int64_t>& cuts, bool causal, int64_t window) const {
    const auto options = at::TensorOptions(at::kLong).device(q.device());
    const at::Tensor key = at::arange(k.size(2), options).unsqueeze(0);
    const at::Tensor query = (at::arange(q.size(2), options) + (k.size(2) - q.size(2))).unsqueeze(1);
    at::Tensor seen = causal ? key <= query : key >= 0;
    if (window > 0) seen = seen.logical_and(query - key < window);
    for (const int64_t cut : cuts) seen = seen.logical_and((query >= cut) == (key >= cut));
    return seen;
  }

  at::Tensor q, k, v;  // [B, N, tokens, n]
  double scale;
  at::Tensor p;  // [B, N, S, T]
  double off;    // error of a score: relative for its p, absolute for log-sum-exp
};

// Returns the error of rounding a factor in a kernel that multiplies in bf16 or fp16: |u| times it, and in fp16, whose
// small numbers have fewer digits, at least half of the smallest number.
double short_unit(c10::ScalarType type) { return is_short(type) ? half_unit(type) : 0; }
double half_smallest(c10::ScalarType type) { return type == at::kHalf ? std::ldexp(1.0, -25) : 0; }

// out = sum of p v: each p has the error |off| twice, from its score and from the sum it is divided by, and is rounded
// to bf16 or fp16 before the product; the sum over keys is accumulated in fp32. Log-sum-exp is never rounded to 16 bit.
Outputs forward_slack_of(const ExactScores& e, c10::ScalarType type) {
  const int64_t keys = e.k.size(2);
  const double sums = (roundings_of_sum(keys) + 16) * sum_unit(type);
  const at::Tensor terms = at::matmul(e.p, e.v.abs()).transpose(1, 2);
  const at::Tensor small = half_smallest(type) * e.v.abs().sum(2, /*keepdim=*/true).transpose(1, 2);
  return {(short_unit(type) + 2 * e.off + sums) * terms + small, at::tensor(e.off + sums, terms.options())};
}

Outputs forward_slack(const Arguments& a, c10::ScalarType type) {
  return forward_slack_of(ExactScores(a, 0, 3, type), type);
}

// A reference rounds the result of attention without sinks, and then its product with a share, an exponential of the
// difference of two log-sum-exps.
Outputs with_sinks_slack(const Arguments& a, const Outputs& exact, c10::ScalarType type) {
  const ExactScores e(a, 0, 4, type, a[3].toTensor());
  const Outputs fused = forward_slack_of(e, type);
  return {fused[0] + (short_unit(type) + fused[1]) * exact[0].abs() + half_smallest(type)};
}

// dv = p^T grad, ds = p (grad v^T - rows) with rows = sum of grad out, dq = scale ds k, dk = scale ds^T q. p and ds are
// rounded to bf16 or fp16, and for ds maybe p before it: two roundings; so are dk and dv of each query head, before
// those of a group are summed. grad v^T and rows are sums of n terms, in fp32.
Outputs backward_slack(const Arguments& a, c10::ScalarType type) {
  const ExactScores e(a, 1, 6, type);
  const int64_t heads = e.q.size(1), group = heads / a[2].toTensor().size(2);
  const double v = sum_unit(type), u = short_unit(type), small = half_smallest(type);
  const at::Tensor grad = for_each_head(a[0].toTensor(), heads), out = for_each_head(a[4].toTensor(), heads);
  const at::Tensor rows = (grad * out).sum(-1, /*keepdim=*/true);
  const at::Tensor ds = (e.p * (at::matmul(grad, e.v.transpose(-1, -2)) - rows)).abs();
  const at::Tensor terms =
      e.p * (at::matmul(grad.abs(), e.v.abs().transpose(-1, -2)) + (grad * out).abs().sum(-1, true));
  const at::Tensor ds_off = (2 * u + 2 * e.off) * ds + (roundings_of_sum(e.q.size(3)) + 8) * v * terms + small;
  const double over_keys = roundings_of_sum(e.k.size(2)) * v;
  const double over_queries = roundings_of_sum(e.q.size(2) * group) * v + u;
  const at::Tensor dq = e.scale * at::matmul(ds_off + over_keys * ds, e.k.abs());
  const at::Tensor dk = e.scale * at::matmul((ds_off + over_queries * ds).transpose(-1, -2), e.q.abs());
  const at::Tensor dv = at::matmul(((u + 2 * e.off + over_queries) * e.p + small).transpose(-1, -2), grad.abs());
  return {dq.transpose(1, 2), over_group(dk, a[2].toTensor()), over_group(dv, a[3].toTensor())};
}

// ------------------------------------------------------------------------------------------------------------ samples

SampleMaker real_forward(const AttentionSize& size) {
  return [size](Draw& draw, c10::ScalarType type) {
    const auto slack = [type](const Arguments& a, const Outputs&) { return forward_slack(a, type); };
    return Sample{draw_qkv(size, draw, type), 0, {}, slack};
  };
}

// The sinks are as large as the scores.
SampleMaker real_with_sinks(const AttentionSize& size) {
  return [size](Draw& draw, c10::ScalarType type) {
    Arguments a = draw_qkv(size, draw, type);
    a.insert(a.begin() + 3, draw.normal({size.N}, type, 2));
    const auto slack = [type](const Arguments& all, const Outputs& exact) {
      return with_sinks_slack(all, exact, type);
    };
    return Sample{a, 0, {}, slack};
  };
}

// With the exact |out|, rounded, and log-sum-exp: the error of the forward pass is not counted again.
SampleMaker real_backward(const AttentionSize& size) {
  return [size](Draw& draw, c10::ScalarType type) {
    Arguments a = draw_qkv(size, draw, type);
    const auto wide = [&](size_t i) { return a[i].toTensor().to(at::kDouble); };
    const AttentionForward whole =
        attention_forward(wide(0), wide(1), wide(2), {size.causal, size.window, a[6].toDouble()}, size.cuts);
    const auto sums = type == at::kDouble ? type : at::kFloat;
    a.insert(a.begin(), draw.normal(a[0].toTensor().sizes().vec(), type));
    a.insert(a.begin() + 4, {whole.out.contiguous().to(type), whole.lse.contiguous().to(sums)});
    const auto slack = [type](const Arguments& arguments, const Outputs&) { return backward_slack(arguments, type); };
    return Sample{a, 0, {}, slack};
  };
}

// Lengths around and beyond 512, multiples of 64 and others; head counts of real models, and each head size for which a
// library may have its own kernel; all of it with packed sequences, windows and parts of the queries.
std::vector<AttentionSize> attention_sizes() {
  return {
      {1, 512, 512, 2, 1, 64},
      {2, 512, 512, 4, 4, 128, /*causal=*/false},
      {2, 1024, 1024, 14, 2, 64, true, 0, {}, /*fused=*/true},
      {1, 2048, 2048, 8, 2, 128},
      {1, 2048, 2048, 4, 2, 64, /*causal=*/false},
      {1, 4096, 4096, 2, 1, 64},
      {3, 576, 576, 3, 1, 80},
      {1, 640, 640, 2, 2, 32},
      {1, 511, 511, 4, 2, 64},
      {1, 1000, 1000, 4, 2, 128, true, 0, {}, /*fused=*/true},
      {2, 1024, 1024, 4, 2, 64, true, /*window=*/256},
      {2, 512, 1024, 4, 2, 128},
      {1, 2048, 2048, 8, 2, 128, true, 0, {0, 700, 701, 1500, 2048}},
      {1, 1537, 1537, 4, 4, 64, /*causal=*/false, 0, {0, 1024, 1537}},
      {1, 2048, 2048, 4, 1, 64, true, /*window=*/512, {0, 1000, 2048}},
      {1, 512, 512, 2, 1, 96},
      {1, 300, 300, 2, 1, 96},
      {1, 300, 300, 2, 1, 160},
      {1, 512, 512, 2, 1, 192},
      {1, 512, 512, 2, 1, 224},
      {1, 640, 640, 2, 1, 256},
      {1, 520, 520, 2, 1, 100},
  };
}

std::vector<SampleMaker> for_attention_sizes(SampleMaker (*maker)(const AttentionSize&)) {
  std::vector<SampleMaker> made;
  for (const AttentionSize& size : attention_sizes()) made.push_back(maker(size));
  return made;
}

// Kernels for sinks are those of attention with another sum: GPT-OSS's head size, its window, packed sequences.
std::vector<SampleMaker> for_sizes_with_sinks() {
  std::vector<SampleMaker> made;
  for (const AttentionSize& size : {AttentionSize{1, 512, 512, 2, 1, 64}, AttentionSize{2, 1024, 1024, 8, 1, 64},
                                    AttentionSize{1, 1000, 1000, 4, 2, 64, true, /*window=*/128},
                                    AttentionSize{1, 2048, 2048, 8, 2, 128, true, 128, {0, 700, 701, 1500, 2048}}}) {
    made.push_back(real_with_sinks(size));
  }
  return made;
}

const RegisterRealSizes kRealAttention("concord::attention", for_attention_sizes(real_forward));
const RegisterRealSizes kRealWithSinks("concord::attention_with_sinks", for_sizes_with_sinks());
const RegisterRealSizes kRealAttentionBackward("concord::attention_backward", for_attention_sizes(real_backward));

// --------------------------------------------------------------------------------------------------- cached_attention

// Rows of different lengths, grouped heads, windows, a cache that is a part of a larger one.
Sample draw_cached(Draw& draw, c10::ScalarType type) {
  const int64_t groups = draw.between(1, 3), kv_heads = draw.between(1, 3), n = draw.size();
  const int64_t rows = draw.between(1, 4), keys = draw.coin() ? draw.size() : 90 + draw.size();
  const int64_t window = draw.coin() ? draw.size() : 0;
  const at::Tensor q = draw.normal({rows, 1, kv_heads * groups, n}, type);
  at::Tensor k = draw.normal({rows, keys + 3, kv_heads, n}, type).narrow(1, 0, keys);
  const at::Tensor v = draw.normal({rows, keys, kv_heads, n}, type);
  const double scale = draw.coin() ? 1 / std::sqrt(static_cast<double>(n)) : 0.3;
  // 16-bit kernels round the probabilities before they multiply them with v.
  const double rounded = type == at::kBFloat16 ? 65536 * 2 : type == at::kHalf ? 8192 * 2 : 64;
  const double cap = draw.coin() ? 2 : 0;
  const c10::IValue sinks = draw.coin() ? c10::IValue(draw.normal({kv_heads * groups}, type)) : c10::IValue();
  return {{q, k, v, draw.integers({rows}, 1, keys), window, scale, cap, sinks}, rounded, {largest(v)}};
}

const RegisterSamples kCached("concord::cached_attention", draw_cached);
// A batch of two rows: heads, key heads and their size, the capacity in keys, and the keys of each row. Scores have a
// deviation of 2, as in real_attention.cpp.
struct CachedSize {
  int64_t heads, kv_heads, n, keys, first, second;
  int64_t window = 0;
  bool sinks = false;
  bool aligned = true;
};

SampleMaker real_cached(const CachedSize& size) {
  return [size](Draw& draw, c10::ScalarType type) {
    const auto placed = [&](const at::Tensor& x) { return size.aligned ? x : misaligned(x); };
    const at::Tensor q = placed(draw.normal({2, 1, size.heads, size.n}, type, 2));
    const at::Tensor k = placed(draw.normal({2, size.keys, size.kv_heads, size.n}, type));
    const at::Tensor v = placed(draw.normal({2, size.keys, size.kv_heads, size.n}, type));
    const double rounded = type == at::kBFloat16 ? 65536 * 2 : type == at::kHalf ? 8192 * 2 : 64;
    const c10::IValue sinks = size.sinks ? c10::IValue(draw.normal({size.heads}, type)) : c10::IValue();
    const double scale = 1 / std::sqrt(static_cast<double>(size.n)), cap = size.sinks ? 30 : 0;
    const at::Tensor lengths = at::tensor({size.first, size.second}, at::kLong);
    return Sample{{q, k, v, lengths, size.window, scale, cap, sinks}, rounded, {largest(v)}};
  };
}

// Groups of heads that one block of a device processes together or separately, rows that end in the middle of a block's
// range, windows that start there.
const RegisterRealSizes kRealCached("concord::cached_attention",
                                    {real_cached({14, 2, 64, 700, 700, 513}), real_cached({32, 8, 128, 9000, 9000, 1}),
                                     real_cached({20, 2, 192, 1000, 128, 129, 200}),
                                     real_cached({16, 16, 256, 300, 300, 77}),
                                     real_cached({64, 8, 64, 2000, 1999, 640, 128, true}),
                                     real_cached({14, 2, 64, 300, 300, 257, 0, true, false}),
                                     real_cached({4, 2, 320, 200, 200, 100})});

}  // namespace
}  // namespace concord::ops::testing
