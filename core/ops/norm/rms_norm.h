// concord::rms_norm: y = x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich, "Root mean
// square layer normalization", 2019), as in Llama and Qwen. Computed in fp32 (fp64 for Double), rounded once.
#pragma once

#include <ATen/core/Tensor.h>

namespace concord {

// |x| [..., n], |weight| [n], of one type and device. Throws ConfigError, with the sizes, if they do not match.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// The residual sum of one branch fused with the norm of the next: sum = x + multiplier * branch, rounded, and its
// rms_norm. Forward is bitwise identical to the two operators; the gradient of the sum is rounded once.
struct NormedSum {
  at::Tensor sum, normed;
};
NormedSum add_rms_norm(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& weight, double eps,
                       double multiplier = 1);

// Like rms_norm(), with factors 1 + weight (Gemma), in fp32: for a 16-bit weight near 0, 1 + weight would lose most
// digits.
at::Tensor rms_norm_plus_one(const at::Tensor& x, const at::Tensor& weight, double eps);

}  // namespace concord
