// Fused operators of transformers: normalisation, rotary positions, gated activation.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/stack.h>

#include "backends/ascend/sim/opapi/operator.h"

namespace concord::ascend::sim {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using OptionalOut = std::optional<Out>;

// ----------------------------------------------------------------------------------------------------------- norms

// The last |count| dimensions.
static Ints last_dims(int64_t count) {
  Ints dims;
  for (int64_t i = 1; i <= count; ++i) dims.push_back(-i);
  return dims;
}

// y = x * rstd * gamma with rstd = 1 / sqrt(mean(x^2) + epsilon), in float32.
static void rms_norm(const Tensor& x, const Tensor& gamma, double epsilon, const Out& out, const Out& rstd) {
  const Tensor wide = x.to(at::kFloat);
  const Tensor scale = at::rsqrt(wide.square().mean(last_dims(gamma.dim()), true) + epsilon);
  rstd.reshaped(scale);
  out = wide * scale * gamma.to(at::kFloat);
}

// Formatted by hand: clang-format breaks every operator over several lines.
// clang-format off
OPERATOR(RmsNorm, (Tensor self, Tensor gamma, double epsilon, Out out, Out rstd) {
  rms_norm(self, gamma, epsilon, out, rstd);
})
OPERATOR(AddRmsNorm, (Tensor a, Tensor b, Tensor gamma, double epsilon, Out out, Out rstd, Out sum) {
  sum = a + b;
  rms_norm(*sum, gamma, epsilon, out, rstd);
})
// dx = rstd * (g - x^ * mean(g * x^)) with g = dy * gamma and x^ = x * rstd.
OPERATOR(RmsNormGrad, (Tensor gradient, Tensor self, Tensor rstd, Tensor gamma, Out dx, Out dgamma) {
  const Tensor normal = self.to(at::kFloat) * rstd;
  const Tensor dy = gradient.to(at::kFloat);
  const Tensor g = dy * gamma.to(at::kFloat);
  dx = rstd * (g - normal * (g * normal).mean(last_dims(gamma.dim()), true));
  dgamma = (dy * normal).reshape(c10::IntArrayRef{-1, gamma.numel()}).sum(0).view(gamma.sizes());
})

OPERATOR(LayerNorm, (Tensor self, Ints shape, OptionalTensor weight, OptionalTensor bias, double epsilon, Out out,
                     OptionalOut mean, OptionalOut rstd) {
  const auto [result, average, scale] = at::native_layer_norm(self, shape, weight, bias, epsilon);
  out = result;
  if (mean.has_value()) mean->reshaped(average);
  if (rstd.has_value()) rstd->reshaped(scale);
})
OPERATOR(LayerNormBackward, (Tensor gradient, Tensor self, Ints shape, Tensor mean, Tensor rstd, OptionalTensor weight,
                             OptionalTensor bias, Bools wanted, OptionalOut dx, OptionalOut dweight,
                             OptionalOut dbias) {
  const std::array<bool, 3> mask = {wanted.at(0), wanted.at(1), wanted.at(2)};
  const auto done = at::native_layer_norm_backward(gradient, self, shape, mean, rstd, weight, bias, mask);
  if (mask[0] && dx.has_value()) *dx = std::get<0>(done);
  if (mask[1] && dweight.has_value()) *dweight = std::get<1>(done);
  if (mask[2] && dbias.has_value()) *dbias = std::get<2>(done);
})

// ---------------------------------------------------------------------------------------------------------- rotary

// Mode 0 takes the pairs (i, i + half), mode 1 the pairs (2i, 2i + 1): (a, b) -> (-b, a).
static Tensor rotated(const Tensor& x, int64_t mode) {
  if (mode == 0) {
    const auto parts = x.chunk(2, -1);
    return at::cat({-parts[1], parts[0]}, -1);
  }
  if (mode != 1) {
    throw OperatorError(kAclnnParamInvalid, "rotary mode " + std::to_string(mode) + " is not simulated: 0 and 1 are");
  }
  const Tensor pairs = x.unflatten(-1, {-1, 2});
  return at::stack({-pairs.select(-1, 1), pairs.select(-1, 0)}, -1).flatten(-2);
}

// CANN's documentation of RotaryPositionEmbedding, for all chips that train: one type, and rotations of even sizes
// below 896.
static void check_rotation(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  const auto require = [](bool is_right, const char* rule) {
    if (!is_right) throw OperatorError(kAclnnParamInvalid, std::string("rotary positions: ") + rule);
  };
  require(x.dim() == 3 || x.dim() == 4, "x must have 3 or 4 dimensions");
  require(cos.scalar_type() == x.scalar_type() && sin.scalar_type() == x.scalar_type(),
          "cos and sin must be of the type of x");
  require(cos.dim() == x.dim() && cos.sizes() == sin.sizes(), "cos and sin must have the dimensions of x");
  require(cos.size(-1) == x.size(-1) && x.size(-1) % 2 == 0 && x.size(-1) < 896,
          "the last dimensions must be equal, even and below 896");
  require(x.size(-2) < 1000 || x.size(-3) < 1000, "1000 heads or more");
}

static void rotate(const Tensor& x, const Tensor& cos, const Tensor& sin, int64_t mode, const Out& out) {
  check_rotation(x, cos, sin);
  const Tensor wide = x.to(at::kFloat);
  out = wide * cos + rotated(wide, mode) * sin;
}

OPERATOR(RotaryPositionEmbedding, (Tensor self, Tensor cos, Tensor sin, int64_t mode, Out out) {
  rotate(self, cos, sin, mode, out);
})
OPERATOR(RotaryPositionEmbeddingV2, (Tensor self, Tensor cos, Tensor sin, int64_t mode, OptionalTensor matrix,
                                     Out out) {
  if (matrix.has_value()) throw OperatorError(kAclnnParamInvalid, "a rotation matrix is not simulated");
  rotate(self, cos, sin, mode, out);
})
// The rotation's transpose is its negative. |self| is given if the gradients of cos and sin are needed.
OPERATOR(RotaryPositionEmbeddingGrad, (Tensor gradient, Tensor cos, Tensor sin, OptionalTensor self, int64_t mode,
                                       Out dx, OptionalOut dcos, OptionalOut dsin) {
  const Tensor dy = gradient.to(at::kFloat);
  dx = dy * cos - rotated(dy * sin, mode);
  if (!self.has_value()) return;
  const Tensor wide = self->to(at::kFloat);
  if (dcos.has_value()) *dcos = (dy * wide).sum_to_size((*dcos)->sizes());
  if (dsin.has_value()) *dsin = (dy * rotated(wide, mode)).sum_to_size((*dsin)->sizes());
})

// Rotates the first elements of heads of |size| elements: pairs of both halves if |neox|, else neighbours. The cache has
// rows of cos and sin.
static Tensor rotated_by_cache(const Tensor& x, const Tensor& cos_sin, int64_t size, bool neox) {
  const Tensor heads = x.to(at::kFloat).unflatten(-1, {-1, size});
  const int64_t rotated = cos_sin.size(-1);
  const auto factors = cos_sin.to(at::kFloat).unsqueeze(1).chunk(2, -1);
  const Tensor turned = heads.narrow(-1, 0, rotated), pairs = turned.unflatten(-1, {-1, 2});
  const auto halves = turned.chunk(2, -1);
  const Tensor a = neox ? halves[0] : pairs.select(-1, 0), b = neox ? halves[1] : pairs.select(-1, 1);
  const Tensor first = a * factors[0] - b * factors[1], second = b * factors[0] + a * factors[1];
  const Tensor y = neox ? at::cat({first, second}, -1) : at::stack({first, second}, -1).flatten(-2);
  return at::cat({y, heads.narrow(-1, rotated, size - rotated)}, -1).flatten(-2);
}

static void rope_with_cache(const Tensor& positions, const Tensor& q, const Tensor& k, const Tensor& cache,
                            const std::optional<Ints>& section, int64_t size, bool neox, const Out& out_q,
                            const Out& out_k) {
  const auto require = [](bool is_right, const char* rule) {
    if (!is_right) throw OperatorError(kAclnnParamInvalid, std::string("rotary positions: ") + rule);
  };
  const int64_t unit = q.scalar_type() == at::kFloat ? 16 : 32;
  require(!section || section->empty() || section->at(0) == 0, "sections of positions are not simulated");
  require(q.dim() == 2 && k.dim() == 2 && cache.dim() == 2 && positions.dim() == 1, "wrong numbers of dimensions");
  require(k.scalar_type() == q.scalar_type() && cache.scalar_type() == q.scalar_type(), "the types differ");
  require(q.stride(1) == 1 && k.stride(1) == 1, "elements of a row must be neighbours");
  require(size % unit == 0 && cache.size(1) % unit == 0 && cache.size(1) <= size,
          "sizes must be multiples of 32 elements of 16 bits, or of 16 of 32 bits, and the rotated part within a head");
  require(q.size(1) % size == 0 && k.size(1) % size == 0, "rows must be whole heads");
  const Tensor rows = cache.index_select(0, positions);
  out_q = rotated_by_cache(q, rows, size, neox);
  out_k = rotated_by_cache(k, rows, size, neox);
}

OPERATOR(RopeWithSinCosCache, (Tensor positions, Tensor q, Tensor k, Tensor cache, std::optional<Ints> section,
                               int64_t size, bool neox, Out out_q, Out out_k) {
  rope_with_cache(positions, q, k, cache, section, size, neox, out_q, out_k);
})
OPERATOR(RopeWithSinCosCacheV2, (Tensor positions, Tensor q, Tensor k, Tensor cache, std::optional<Ints> section,
                                 int64_t size, bool neox, int64_t mode, Out out_q, Out out_k) {
  if (mode != 0) throw OperatorError(kAclnnParamInvalid, "only cache mode 0 is simulated");
  rope_with_cache(positions, q, k, cache, section, size, neox, out_q, out_k);
})

// ---------------------------------------------------------------------------------------------------------- swiglu

OPERATOR(SwiGlu, (Tensor self, int64_t dim, Out out) {
  const auto parts = self.to(at::kFloat).chunk(2, dim);
  out = at::silu(parts[0]) * parts[1];
})
OPERATOR(SwiGluGrad, (Tensor gradient, Tensor self, int64_t dim, Out out) {
  const auto parts = self.to(at::kFloat).chunk(2, dim);
  const Tensor dy = gradient.to(at::kFloat);
  out = at::cat({at::silu_backward(dy * parts[1], parts[0]), dy * at::silu(parts[0])}, dim);
})

// The form of gelu. GeGluV3 activates the left half if |left|, else the right one; both results have the type of |self|.
static const char* gelu_form(int64_t approximate) {
  if (approximate == 0) return "none";
  if (approximate == 1) return "tanh";
  throw OperatorError(kAclnnParamInvalid, "the form of gelu is " + std::to_string(approximate) + "; must be 0 or 1");
}
OPERATOR(GeGluV3, (Tensor self, int64_t dim, int64_t approximate, bool left, Out out, Out gelu) {
  const auto parts = self.to(at::kFloat).chunk(2, dim);
  const Tensor activated = at::gelu(parts[left ? 0 : 1], gelu_form(approximate));
  out = activated * parts[left ? 1 : 0];
  gelu = activated;
})
OPERATOR(GeGluV3Backward, (Tensor gradient, Tensor self, Tensor gelu, int64_t dim, int64_t approximate, bool left,
                           Out out) {
  const auto parts = self.to(at::kFloat).chunk(2, dim);
  const Tensor dy = gradient.to(at::kFloat);
  const Tensor slope = at::gelu_backward(dy * parts[left ? 1 : 0], parts[left ? 0 : 1], gelu_form(approximate));
  const Tensor other = dy * gelu.to(at::kFloat);
  out = left ? at::cat({slope, other}, dim) : at::cat({other, slope}, dim);
})

// clang-format on
}  // namespace concord::ascend::sim
