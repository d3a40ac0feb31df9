// Tensors that follow one another in memory, as one.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/as_strided.h>

namespace concord::ascend::torch_side {

// Whether |next| begins where |first| ends. Both are contiguous. True if both are undefined.
inline bool follows(const at::Tensor& first, const at::Tensor& next) {
  if (!first.defined()) return !next.defined();
  return first.is_alias_of(next) && next.storage_offset() == first.storage_offset() + first.numel();
}

// Returns both as one flat tensor, or undefined.
inline at::Tensor joined(const at::Tensor& first, const at::Tensor& next) {
  return first.defined() ? at::as_strided(first, {first.numel() + next.numel()}, {1}) : first;
}

}  // namespace concord::ascend::torch_side
