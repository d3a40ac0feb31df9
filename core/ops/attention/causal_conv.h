// concord::causal_conv: y = silu(w * x), a short convolution over the tokens of each channel that sees no later ones:
// (w * x)[t] = sum_j w[j] x[t - K + 1 + j]. What comes before the first token is 0. Computed in fp32 (fp64 for Double),
// rounded once. The host and all devices have the reference, composed of libtorch's operators.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

namespace concord {

// |x| [B, S, channels], |weight| [channels, K], of one type and device. Packed sequences (B = 1) begin at |cu_seqlens|,
// 0 first and S last, and see nothing of each other; empty: not packed. Throws ConfigError, with the sizes, if they do
// not fit.
at::Tensor causal_conv(const at::Tensor& x, const at::Tensor& weight, at::IntArrayRef cu_seqlens = {});

}  // namespace concord
