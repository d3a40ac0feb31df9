// Fused operators of transformers: normalisation, rotary positions, gated activation.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
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

static void rotate(const Tensor& x, const Tensor& cos, const Tensor& sin, int64_t mode, const Out& out) {
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

// clang-format on
}  // namespace concord::ascend::sim
