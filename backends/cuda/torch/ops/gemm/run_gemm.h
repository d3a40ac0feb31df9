// Runs gemm() on tensors. Only for the .cpp files in this folder.
#pragma once

#include <ATen/Context.h>
#include <ATen/ops/empty.h>

#include <vector>

#include "backends/cuda/torch/ops/gemm/gemm.h"
#include "backends/cuda/torch/ops/tensors.h"

namespace concord::cuda::torch_side {

inline bool is_ready(const at::Tensor& x) {
  return x.is_contiguous() && reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
}

// Runs |g| on libtorch's current stream of the device of |like|, which is the current device.
inline void run_gemm(Gemm g, const GemmArrays& arrays, const at::Tensor& like) {
  g.timed = !at::globalContext().deterministicAlgorithms();
  std::vector<at::Tensor> kept;  // only until the GEMM is enqueued: libtorch reuses memory in stream order
  const Workspace workspace = [&](size_t bytes) {
    kept.push_back(at::empty({static_cast<int64_t>(bytes)}, like.options().dtype(at::kByte)));
    return kept.back().mutable_data_ptr();
  };
  gemm(where(like).stream, g, arrays, workspace);
}

}  // namespace concord::cuda::torch_side
