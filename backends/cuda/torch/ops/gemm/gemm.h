// Large GEMMs with 16-bit or FP8 operands through cublasLt, with algorithms chosen by timing: cuBLAS's own first choice
// is 3 to 7 % slower on the shapes of small models. Does not use libtorch.
//
// The first GEMM of a shape times the algorithms that cublasLt suggests, with the device under load, and uses the
// fastest, which is also stored on disk by device and library version, in $XDG_CACHE_HOME/concord or ~/.cache/concord.
// So a restarted run computes the same bits. If that folder is not writable, every process times its own. In
// deterministic mode nothing is timed. With CONCORD_CUDA_GEMM=heuristic all GEMMs are libtorch's.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>

#include "backends/cuda/torch/ops/fp8/fp8_kernels.h"

namespace concord::cuda::torch_side {

// A product of dense row-major matrices: c [rows, columns] (+)= op(a) op(b), summed over |depth|. Transposed operands
// are stored as [depth, rows] and [columns, depth].
struct Gemm {
  int64_t rows, columns, depth;
  bool transposed_a = false, transposed_b = false;
  Type type = Type::bf16;  // type of c unless it is wide, and of a and b unless they are narrow
  bool wide = false;       // c is fp32
  bool adds = false;       // the product is added to c; false: c is overwritten
  bool has_bias = false;   // [columns], of c's type; added to each row
  bool timed = true;       // false: cublasLt's own choice, which is the same in every run
  // FP8 formats of the operands, set for both or none; FP8 needs a transposed b only. The scales are on the device.
  Narrow narrow_a = Narrow::none, narrow_b = Narrow::none;
  bool fast = false;  // narrow: sums may be kept in fewer than 32 bits
  // FP8: the part of a matrix that has its own scale. Both operands have a scale per block or both one scale, and not
  // both have square blocks. Scales of row blocks are [depth / 128, rows or columns]; those of square blocks have lines
  // of a multiple of 4 (fp8_kernels.h).
  enum class Scales { matrix, row_blocks, squares };
  Scales scales_a = Scales::matrix, scales_b = Scales::matrix;

  auto operator<=>(const Gemm&) const = default;
};

// Whether gemm() supports |g|: there is a cublasLt, and types and sizes fit. Small GEMMs are libtorch's: their time
// does not matter, and some must give the same bits on several ranks (the routers of experts, which every
// tensor-parallel rank computes), which a choice by timing would not ensure.
bool takes(const Gemm& gemm);

bool has_timed_gemms();         // whether gemm() supports any
bool has_block_scaled_gemms();  // whether it supports FP8 with a scale per block: Hopper with cuBLAS 12.9 or later

struct GemmArrays {
  const void *a, *b;
  void* c;
  const void* bias = nullptr;
  const float *a_scale = nullptr, *b_scale = nullptr;  // factors of FP8 numbers
};
// Allocates device memory of the given bytes, which the caller frees once the stream has passed the GEMM.
using Workspace = std::function<void*(size_t bytes)>;

// Enqueues the product on |stream|, of the current device. Throws std::runtime_error. Waits: for the device, if the
// shape is new. Threads: any thread.
void gemm(cudaStream_t stream, const Gemm& gemm, const GemmArrays& arrays, const Workspace& workspace);

}  // namespace concord::cuda::torch_side
