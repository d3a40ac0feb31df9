// Samples of further operators of layers at real sizes (samples.h): layer norms, norms with rotations, convolutions and
// states of linear attention, attention with capped scores.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

#include "core/ops/attention/attention.h"
#include "core/ops/attention/attention_parts.h"
#include "core/ops/testing/samples.h"
#include "core/ops/visit_type.h"

namespace concord::ops::testing {
namespace {

using at::Tensor;
using LayerArguments = std::vector<c10::IValue>;
using LayerOutputs = std::vector<at::Tensor>;

template <class Size>
std::vector<SampleMaker> for_layers(const std::vector<Size>& sizes,
                                    Sample (*make)(const Size&, Draw&, c10::ScalarType)) {
  std::vector<SampleMaker> made;
  for (const Size& size : sizes) {
    made.push_back([=](Draw& draw, c10::ScalarType type) { return make(size, draw, type); });
  }
  return made;
}

// --------------------------------------------------------------------------------------------------------- layer_norm

struct LayerNormSize {
  int64_t rows, width;
  bool has_bias = true;
};
const std::vector<LayerNormSize> kLayerNormSizes = {{9, 72}, {2049, 1280}, {515, 1152, false}, {33, 4099}};

// With v of a rounding: the mean has the error of a sum, and so has the variance; each value a few roundings of x and
// the mean, which may cancel.
Sample real_layer_norm(const LayerNormSize& size, Draw& draw, c10::ScalarType type) {
  const Tensor x = draw.normal({size.rows, size.width}, type), weight = draw.normal({size.width}, type);
  const c10::IValue bias = size.has_bias ? c10::IValue(draw.normal({size.width}, type)) : c10::IValue();
  const auto slack = [=](const LayerArguments& a, const LayerOutputs& exact) {
    const Tensor wide = a[0].toTensor().abs(), mean = wide.mean(-1, true);
    const double off = (roundings_of_sum(size.width) + 8) * sum_unit(type);
    Tensor y = 2 * off * (wide + mean) * exact[2].unsqueeze(-1) * a[1].toTensor().abs();
    if (a[2].isTensor()) y = y + sum_unit(type) * a[2].toTensor().abs();
    return LayerOutputs{y, off * mean.squeeze(-1), 2 * off * exact[2]};
  };
  return {{x, weight, bias, 1e-6}, 0, {}, slack};
}

// With g = grad w and h = (x - mean) rstd: dx = rstd (g - mean(g) - h mean(g h)), dweight = sum of grad h, dbias = sum
// of grad.
Sample real_layer_norm_backward(const LayerNormSize& size, Draw& draw, c10::ScalarType type) {
  const Tensor x = draw.normal({size.rows, size.width}, type), weight = draw.normal({size.width}, type);
  const Tensor wide = x.to(at::kDouble), mean = wide.mean(-1, true);
  const Tensor rstd = ((wide - mean).square().mean(-1) + 1e-6).rsqrt();
  const auto slack = [=](const LayerArguments& a, const LayerOutputs& exact) {
    const Tensor grad = a[0].toTensor().abs(), r = a[4].toTensor().unsqueeze(-1);
    const Tensor h = (a[1].toTensor().abs() + a[3].toTensor().abs().unsqueeze(-1)) * r;
    const Tensor g = grad * a[2].toTensor().abs();
    const double v = sum_unit(type), row = roundings_of_sum(size.width) + 16, column = roundings_of_sum(size.rows) + 8;
    LayerOutputs made{v * row * r * (g + g.mean(-1, true) + h * (g * h).mean(-1, true)), v * column * (grad * h).sum(0),
                      v * column * grad.sum(0)};
    made.resize(exact.size());
    return made;
  };
  const Tensor grad = draw.normal({size.rows, size.width}, type);
  return {{grad, x, weight, mean.squeeze(-1).to(sum_type(type)), rstd.to(sum_type(type))}, 0, {}, slack};
}

const RegisterRealSizes kRealLayerNorm("concord::layer_norm", for_layers(kLayerNormSizes, real_layer_norm));
const RegisterRealSizes kRealLayerNormBackward("concord::layer_norm_backward",
                                               for_layers(kLayerNormSizes, real_layer_norm_backward));

// ------------------------------------------------------------------------------------------------------ norm_rope_qkv

struct NormRopeSize {
  int64_t tokens, batch, heads, kv_heads, n, half;
};

NormRopeSize draw_norm_rope(Draw& draw) {
  const int64_t half = draw.coin() ? 8 * draw.between(1, 4) : draw.size();
  const int64_t n = 2 * half + (draw.coin() ? 0 : 8 * draw.between(1, 2));
  return {draw.between(1, 30), draw.between(1, 4), draw.between(1, 5), draw.between(1, 3), n, half};
}

struct NormRopeInputs {
  NormRopeInputs(const NormRopeSize& size, Draw& draw, c10::ScalarType type)
      : qkv(draw.normal({size.tokens, size.batch, (size.heads + 2 * size.kv_heads) * size.n}, type)),
        q_weight(draw.normal({size.n}, type)),
        k_weight(draw.normal({size.n}, type)) {
    const auto sums = type == at::kDouble ? type : at::kFloat;
    const Tensor angle = draw.normal({size.tokens, 1, size.half}, at::kDouble, 3);
    cos = angle.cos().to(sums);
    sin = angle.sin().to(sums);
  }
  Tensor qkv, q_weight, k_weight, cos, sin;
};

// Returns the relative rounding error between norm and rope.
double unit_between(c10::ScalarType type) { return is_short(type) ? 2 * half_unit(type) : 0; }

Sample norm_rope_sample(const NormRopeSize& size, Draw& draw, c10::ScalarType type) {
  const NormRopeInputs in(size, draw, type);
  const auto slack = [=](const std::vector<c10::IValue>&, const std::vector<Tensor>& exact) {
    const double of_norm = (roundings_of_sum(size.n) / 2 + 12) * sum_unit(type), off = of_norm + unit_between(type);
    return std::vector<Tensor>{off * pair_lengths(exact[0], size.half), off * pair_lengths(exact[1], size.half),
                               at::zeros_like(exact[2]), of_norm * exact[3]};
  };
  Sample made{{in.qkv, in.q_weight, in.k_weight, in.cos, in.sin, size.heads, size.kv_heads, 1e-6}, 0, {}, slack};
  made.ascend_slack = rotated_by_cann(type, size.half, 2);
  return made;
}

// With h = x rstd and u the gradient rotated back: dx = rstd (u w - h mean(u w h)), dweight = sum of u h over all
// heads. |of_u| is the relative error of u.
std::vector<Tensor> norm_rope_slack(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                                    int64_t half, c10::ScalarType type, double of_u) {
  const Tensor u = pair_lengths(grad.to(at::kDouble), half), w = weight.to(at::kDouble).abs();
  const Tensor r = rstd.to(at::kDouble).unsqueeze(-1), h = x.to(at::kDouble).abs() * r;
  const double v = sum_unit(type);
  const int64_t n = x.size(-1), rows = x.numel() / n;
  const double of_dx = of_u + (roundings_of_sum(n) + 16) * v;
  const double of_sum = of_u + (roundings_of_sum(rows) + 8) * v;
  return {of_dx * r * (u * w + h * (u * w * h).mean(-1, true)), of_sum * (u * h).reshape({-1, n}).sum(0)};
}

// Gradients in the layout of attention: [batch, tokens, ...], viewed as [tokens, batch, ...].
Sample norm_rope_backward_sample(const NormRopeSize& size, Draw& draw, c10::ScalarType type) {
  const NormRopeInputs in(size, draw, type);
  const auto grad = [&](int64_t heads) {
    return draw.normal({size.batch, size.tokens, heads, size.n}, type).transpose(0, 1);
  };
  const Tensor dq = grad(size.heads), dk = grad(size.kv_heads), dv = grad(size.kv_heads);
  const Tensor all = in.qkv.to(at::kDouble).unflatten(-1, {size.heads + 2 * size.kv_heads, -1});
  const Tensor turned = all.narrow(-2, 0, size.heads + size.kv_heads);
  const Tensor rstd = ((turned * turned).mean(-1) + 1e-6).rsqrt().to(in.cos.scalar_type());
  const auto slack_with = [=](const std::vector<c10::IValue>& a, double of_u) {
    const auto at = [&](size_t i) { return a[i].toTensor(); };
    const Tensor x = at(3).unflatten(-1, {size.heads + 2 * size.kv_heads, -1});
    const auto q = norm_rope_slack(at(0), x.narrow(-2, 0, size.heads), at(5), at(4).narrow(-1, 0, size.heads),
                                   size.half, type, of_u);
    const auto k = norm_rope_slack(at(1), x.narrow(-2, size.heads, size.kv_heads), at(6),
                                   at(4).narrow(-1, size.heads, size.kv_heads), size.half, type, of_u);
    const Tensor none = at::zeros_like(at(2), at::TensorOptions(at::kDouble));
    return std::vector<Tensor>{at::cat({q[0], k[0], none}, -2).flatten(-2), q[1], k[1]};
  };
  Sample made{{dq, dk, dv, in.qkv, rstd, in.q_weight, in.k_weight, in.cos, in.sin}};
  made.slack = [=](const std::vector<c10::IValue>& a, const std::vector<Tensor>&) {
    return slack_with(a, unit_between(type));
  };
  made.ascend_slack = [=](const std::vector<c10::IValue>& a, const std::vector<Tensor>&) {
    return slack_with(a, unit_of_rotation_on_ascend(type));
  };
  return made;
}

const RegisterSamples kNormRope("concord::norm_rope_qkv", [](Draw& draw, c10::ScalarType type) {
  return norm_rope_sample(draw_norm_rope(draw), draw, type);
});
const RegisterSamples kNormRopeBackward("concord::norm_rope_qkv_backward", [](Draw& draw, c10::ScalarType type) {
  return norm_rope_backward_sample(draw_norm_rope(draw), draw, type);
});

// Head sizes of Qwen3-MoE and others: as wide as 8, 16 and 32 threads of each type hold, one with a quarter rotated,
// one without vector loads.
std::vector<SampleMaker> for_norm_ropes(Sample (*make)(const NormRopeSize&, Draw&, c10::ScalarType)) {
  const std::vector<NormRopeSize> sizes = {{65, 2, 4, 2, 16, 8},    {1024, 4, 16, 4, 128, 64}, {2049, 1, 4, 2, 64, 32},
                                           {129, 2, 8, 1, 128, 16}, {33, 3, 3, 1, 256, 128},   {65, 1, 2, 1, 512, 256},
                                           {65, 1, 5, 2, 32, 16},   {77, 3, 3, 1, 10, 5}};
  std::vector<SampleMaker> made;
  for (const NormRopeSize& size : sizes) {
    made.push_back([=](Draw& draw, c10::ScalarType type) { return make(size, draw, type); });
  }
  return made;
}
const RegisterRealSizes kRealNormRope("concord::norm_rope_qkv", for_norm_ropes(norm_rope_sample));
const RegisterRealSizes kRealNormRopeBackward("concord::norm_rope_qkv_backward",
                                              for_norm_ropes(norm_rope_backward_sample));

// -------------------------------------------------------------------------------------------------------- causal_conv

struct ConvSize {
  int64_t rows, tokens, channels;
  bool is_packed = false;
};
const std::vector<ConvSize> kConvSizes = {{1, 70, 24}, {2, 515, 1024}, {1, 2049, 513, true}};

Sample real_conv(const ConvSize& size, Draw& draw, c10::ScalarType type) {
  const std::vector<int64_t> cuts =
      size.is_packed ? std::vector<int64_t>{0, size.tokens / 3, size.tokens / 3, size.tokens} : std::vector<int64_t>{};
  constexpr int64_t kTaps = 4;
  const Tensor x = draw.normal({size.rows, size.tokens, size.channels}, type),
               weight = draw.normal({size.channels, kTaps}, type);
  return {{x, weight, cuts}, 32, {kTaps * largest(x) * largest(weight)}};
}

// The derivative of silu contains y, a sum of four products; that of a weight is a sum over all tokens.
Sample real_conv_backward(const ConvSize& size, Draw& draw, c10::ScalarType type) {
  Sample made = real_conv(size, draw, type);
  const Tensor x = made.arguments[0].toTensor(), weight = made.arguments[1].toTensor();
  const Tensor grad = draw.normal(x.sizes().vec(), type);
  const double slope = largest(grad) * (1 + 4 * largest(x) * largest(weight));
  made.arguments.insert(made.arguments.begin(), grad);
  const double terms = static_cast<double>(size.rows * size.tokens);
  return {made.arguments, 64, {4 * slope * largest(weight), slope * largest(x) * std::sqrt(terms)}};
}

const RegisterRealSizes kRealConv("concord::causal_conv", for_layers(kConvSizes, real_conv));
const RegisterRealSizes kRealConvBackward("concord::causal_conv_backward", for_layers(kConvSizes, real_conv_backward));

// --------------------------------------------------------------------------------------------------- capped_attention

struct CappedSize {
  int64_t tokens, heads, kv_heads, n, window;
};
const std::vector<CappedSize> kCappedSizes = {{70, 4, 2, 32, 0}, {515, 8, 4, 128, 0}, {700, 4, 1, 256, 128}};

// Scores have a deviation of some 2, so that the cap bends a few.
Sample real_capped(const CappedSize& size, Draw& draw, c10::ScalarType type) {
  const Tensor q = draw.normal({1, size.tokens, size.heads, size.n}, type, 2);
  const Tensor k = draw.normal({1, size.tokens, size.kv_heads, size.n}, type),
               v = draw.normal({1, size.tokens, size.kv_heads, size.n}, type);
  const double scale = 1 / std::sqrt(static_cast<double>(size.n));
  return {{q, k, v, std::vector<int64_t>{}, true, size.window, scale, 30.0}, 256, {largest(v), 30}};
}

Sample real_capped_backward(const CappedSize& size, Draw& draw, c10::ScalarType type) {
  const Sample made = real_capped(size, draw, type);
  const auto tensor = [&](size_t i) { return made.arguments[i].toTensor(); };
  const AttentionOptions options{
      .causal = true, .window = size.window, .scale = made.arguments[6].toDouble(), .cap = 30};
  const AttentionForward whole =
      attention_forward(tensor(0).to(at::kDouble), tensor(1).to(at::kDouble), tensor(2).to(at::kDouble), options, {});
  const Tensor grad = draw.normal(tensor(0).sizes().vec(), type);
  LayerArguments arguments = {grad, tensor(0), tensor(1), tensor(2), whole.out.to(type), whole.lse.to(sum_type(type))};
  arguments.insert(arguments.end(), made.arguments.begin() + 3, made.arguments.end());
  const double terms = largest(grad) * largest(tensor(2)) * (1 + largest(tensor(0)) + largest(tensor(1))) *
                       std::sqrt(static_cast<double>(size.tokens * size.n));
  return {arguments, is_short(type) ? 65536 * 2 : 256.0, {terms, terms, terms}};
}

const RegisterRealSizes kRealCapped("concord::capped_attention", for_layers(kCappedSizes, real_capped));
const RegisterRealSizes kRealCappedBackward("concord::capped_attention_backward",
                                            for_layers(kCappedSizes, real_capped_backward));

// --------------------------------------------------------------------------------------------------- gated_delta_rule

struct DeltaSize {
  int64_t rows, tokens, key_heads, heads, n, m;
};
const std::vector<DeltaSize> kDeltaSizes = {{1, 70, 1, 2, 16, 16}, {1, 300, 2, 4, 128, 128}};

// A token adds at most |v| to the state; queries and keys have unit length.
Sample real_delta(const DeltaSize& size, Draw& draw, c10::ScalarType type) {
  const auto sums = sum_type(type);
  const Tensor q = draw.normal({size.rows, size.tokens, size.key_heads, size.n}, type),
               k = draw.normal({size.rows, size.tokens, size.key_heads, size.n}, type);
  const Tensor v = draw.normal({size.rows, size.tokens, size.heads, size.m}, type);
  const Tensor decay = -at::softplus(draw.normal({size.rows, size.tokens, size.heads}, sums, 3)),
               beta = draw.normal({size.rows, size.tokens, size.heads}, sums).sigmoid();
  const double terms = largest(v) * std::sqrt(static_cast<double>(size.tokens));
  return {{q, k, v, decay, beta, c10::IValue(), std::vector<int64_t>{}}, 64, {terms, terms}};
}

Sample real_delta_backward(const DeltaSize& size, Draw& draw, c10::ScalarType type) {
  const Sample made = real_delta(size, draw, type);
  const auto tensor = [&](size_t i) { return made.arguments[i].toTensor(); };
  const Tensor grad = draw.normal(tensor(2).sizes().vec(), type);
  const double root = std::sqrt(static_cast<double>(size.tokens)), terms = largest(grad) * root;
  const double product = terms * (1 + largest(tensor(2))) * root;
  const std::vector<double> sizes{product, product, terms, product, product};
  return {{grad, tensor(0), tensor(1), tensor(2), tensor(3), tensor(4), made.arguments[6]}, 64, sizes};
}

const RegisterRealSizes kRealDelta("concord::gated_delta_rule", for_layers(kDeltaSizes, real_delta));
const RegisterRealSizes kRealDeltaBackward("concord::gated_delta_rule_backward",
                                           for_layers(kDeltaSizes, real_delta_backward));

}  // namespace
}  // namespace concord::ops::testing
