// Helpers of the kernels on packed heads (PackedRope in attention_kernels.h).
#pragma once

#include "backends/cuda/torch/ops/attention/attention_kernels.h"
#include "backends/cuda/torch/ops/device_math.cuh"

namespace concord::cuda::torch_side {

// Whether all inputs can be read, and |y| can be written, in vectors.
template <class T>
bool packs_wide(const PackedRope& shape, const void* cos, const void* sin, const void* y) {
  const auto is_whole = [](int64_t n) { return n % kWide<T> == 0; };
  for (const void* angles : {cos, sin}) {  // read in vectors of the same number of Sums
    if (reinterpret_cast<uintptr_t>(angles) % (kWide<T> * sizeof(SumOf<T>)) != 0) return false;
  }
  if (!is_whole(shape.angle_stride[0]) || !is_whole(shape.angle_stride[1])) return false;
  for (const HeadsFrom& part : {shape.q, shape.k, shape.v}) {
    if (!is_aligned(part.x) || !std::all_of(part.stride, part.stride + 3, is_whole)) return false;
  }
  return is_aligned(y) && is_whole(shape.dim) && is_whole(shape.half);
}

}  // namespace concord::cuda::torch_side
