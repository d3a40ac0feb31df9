// concord::rms_norm: y = x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich, "Root mean
// square layer normalization", 2019), as Llama and Qwen have it. Computed in fp32 (fp64 for Double), rounded once.
#pragma once

namespace at {
class Tensor;
}

namespace concord {

// |x| [..., n], |weight| [n], of one type and device. Throws ConfigError, with the sizes, if they do not fit.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

}  // namespace concord
