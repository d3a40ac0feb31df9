// The weight gradient of a linear layer, for layers that overlap it with communication.
#pragma once

#include <optional>

#include "core/ops/linear.h"

namespace concord {

inline std::optional<GradSink> copy_of(const GradSink* sink) {
  return sink == nullptr ? std::nullopt : std::optional(*sink);
}

// Adds the weight gradient to |sink|, or returns it for autograd if there is no sink.
inline at::Tensor accumulate_wgrad(const std::optional<GradSink>& sink, const at::Tensor& grad_so,
                                   const at::Tensor& x_si, Fp8Layer* fp8 = nullptr) {
  if (!sink) return linear_weight_grad(grad_so, x_si, fp8);
  add_linear_weight_grad(*sink, grad_so, x_si, fp8);
  return {};
}

}  // namespace concord
