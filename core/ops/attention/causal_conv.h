// concord::causal_conv: y = silu(w * x), a short causal convolution over the tokens of each channel: (w * x)[t] = sum_j
// w[j] x[t - K + 1 + j], with zeros before the first token. Computed in fp32 (fp64 for Double), rounded once. The host
// and all devices use the reference, composed of libtorch's operators.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

namespace concord {

// |x| [B, S, channels], |weight| [channels, K], of one type and device. Packed sequences (B = 1) start at |cu_seqlens|,
// 0 first and S last, and do not see each other; empty: not packed. Throws ConfigError, with the sizes, if they do not
// match.
at::Tensor causal_conv(const at::Tensor& x, const at::Tensor& weight, at::IntArrayRef cu_seqlens = {});

}  // namespace concord
