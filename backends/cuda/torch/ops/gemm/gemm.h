// Large GEMMs of 16-bit or 8-bit operands through cublasLt, with algorithms chosen by timing: cuBLAS's own first choice
// is 3 to 7 % slower on the shapes of small models. Free of libtorch.
//
// The first GEMM of a shape times what cublasLt suggests, with the device under load, and keeps the fastest, also on
// disk, by device and library version: in $XDG_CACHE_HOME/concord or ~/.cache/concord. So a run that is started again
// computes the same bits. Where that folder cannot be written to, every process times for itself. In deterministic mode
// nothing is timed.
// CONCORD_CUDA_GEMM=heuristic leaves all to libtorch.
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
  bool adds = false;       // to c, else c is overwritten
  bool has_bias = false;   // [columns], of c's type; added to each row
  bool timed = true;       // false: cublasLt's own choice, which is the same in every run
  // FP8 formats, for both or none; then only b is transposed. Their scales are on the device.
  Narrow narrow_a = Narrow::none, narrow_b = Narrow::none;
  bool fast = false;  // narrow: sums may be kept in fewer than 32 bits
  // Narrow: the part of a matrix that has its own scale. Both are blocks or both whole matrices, and not both are
  // squares. Scales of rows' blocks are [depth / 128, rows or columns], those of squares lines of a multiple of 4
  // (fp8_kernels.h).
  enum class Scales { matrix, row_blocks, squares };
  Scales scales_a = Scales::matrix, scales_b = Scales::matrix;

  auto operator<=>(const Gemm&) const = default;
};

// Whether gemm() takes it: there is a cublasLt, types and sizes fit. Small ones are left to libtorch: their time does
// not matter, and some have to give the same bits on several ranks (the routers of experts, computed by every
// tensor-parallel rank for itself), which a choice by timing would not ensure.
bool takes(const Gemm& gemm);

bool has_timed_gemms();         // whether it takes any
bool has_block_scaled_gemms();  // and narrow ones with a scale per block: Hopper with cuBLAS 12.9 or later

struct GemmArrays {
  const void *a, *b;
  void* c;
  const void* bias = nullptr;
  const float *a_scale = nullptr, *b_scale = nullptr;  // what narrow numbers are multiplied with
};
// Memory on the device that the caller frees when the stream has come so far: a function from bytes.
using Workspace = std::function<void*(size_t bytes)>;

// Enqueues it on |stream|, of the current device. Waits: for the device, where the shape is new. Throws
// std::runtime_error. Threads: any thread.
void gemm(cudaStream_t stream, const Gemm& gemm, const GemmArrays& arrays, const Workspace& workspace);

}  // namespace concord::cuda::torch_side
