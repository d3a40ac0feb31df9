// concord::rope: rotary position embedding (Su et al., "RoFormer", 2021), pairs (i, i + n/2) as Hugging Face has them.
// Turning back is the derivative of turning. Computed in fp32 (fp64 for Double), rounded once.
// core/ops/rope_angles.h makes the angles.
#pragma once

namespace at {
class Tensor;
}

namespace concord {

// |x| [..., heads, n]; |cos|, |sin| [..., r] broadcast over the leading dimensions of x ([S, r] or [B, S, r] for [B, S,
// heads, n], [S, 1, r] for [S, B, heads, n], [T, r] for packed [T, heads, n]), fp32, or fp64 for Double. 2 r <= n; what
// is beyond 2 r stays unchanged. Throws ConfigError, with the sizes, if they do not fit.
at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

}  // namespace concord
