// concord::rms_norm: y = x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich, "Root mean
// square layer normalization", 2019), as Llama and Qwen have it. Computed in fp32 (fp64 for Double), rounded once.
#pragma once

#include <ATen/core/Tensor.h>

namespace concord {

// |x| [..., n], |weight| [n], of one type and device. Throws ConfigError, with the sizes, if they do not fit.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// The end of one branch of a residual network and the beginning of the next in one pass: sum = x + multiplier * branch,
// rounded, and its rms_norm. The same bits as from two operators, forward; the gradient of the sum is rounded once.
struct NormedSum {
  at::Tensor sum, normed;
};
NormedSum add_rms_norm(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& weight, double eps,
                       double multiplier = 1);

// The same with factors 1 + weight (Gemma), in fp32: of a 16-bit weight near 0, 1 + weight would lose most.
at::Tensor rms_norm_plus_one(const at::Tensor& x, const at::Tensor& weight, double eps);

}  // namespace concord
