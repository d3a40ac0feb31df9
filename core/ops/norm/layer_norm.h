// concord::layer_norm: y = (x - mean) / sqrt(variance + eps) * weight + bias over the last dimension (Ba, Kiros and
// Hinton, "Layer normalization", 2016). Computed in fp32 (fp64 for Double), rounded once.
#pragma once

namespace at {
class Tensor;
}

namespace concord {

// |x| [..., n], |weight| [n], |bias| [n] or undefined, of one type and device. Throws ConfigError, with the sizes, if
// they do not match.
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps);

}  // namespace concord
