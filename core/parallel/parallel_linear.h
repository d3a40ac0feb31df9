// Linear layers split over a tensor-parallel group, with their communication overlapping their GEMMs.
//
//   column  weight [out / n, in], a part of the outputs: x is whole, or split along its tokens (sequence parallelism);
//           y is split along its last dim
//   row     weight [out, in / n], a part of the inputs: x is split along its last dim, y is whole, or split along its
//           tokens; the bias [out] is added after the sum
//
// Tokens are dim 0. Under sequence parallelism column keeps its own tokens only and gathers the others again in
// backward, while the input's gradient is computed; that gradient's sum runs in parallel with the weight gradient.
// Gradients of biases and norms of a layer that sees its own tokens only are partial over the group: reducing them is
// left to the code that finalises gradients. Sinks and the weight's half: core/ops/linear.h. Errors: ConfigError with
// the layer's name, the sizes and the degree.
// |group| has to live until backward is done.
//
// A low-rank pair (low_rank.h) beside a layer is split as the layer is, and its inner side, of the size of its rank, is
// what moves between ranks:
//   column  A whole, on x as it comes; B a part of the outputs. The gradient of A is partial over the group if x is
//           split along tokens
//   row     A a part of the inputs; B whole, on the sum. The gradient of B is partial over the group if y is split
//           along tokens
#pragma once

#include <cstdint>
#include <string>

#include "core/mesh/process_group.h"
#include "core/ops/grad_sink.h"
#include "core/parallel/low_rank.h"

namespace concord {

class Fp8Layer;
class Nf4Weight;

struct ParallelLinearOptions {
  std::string name = "linear";     // for errors
  bool sequence_parallel = false;  // the side that is not cut by features is split along tokens
  // row: its tokens are computed in this many pieces, the sum of one in parallel with the GEMM of the next. A result
  // does not depend on it. Tokens that do not divide by it, or by it times the group, are computed in one piece.
  int64_t pieces = 1;
  // The weight's values, computed where they are needed, in forward and again in backward; of |weight| only the shape
  // and type count then. Has to live until backward is done.
  const Nf4Weight* nf4 = nullptr;
  Fp8Layer* fp8 =
      nullptr;  // its GEMMs are of 8-bit floats (core/ops/precision/fp8_layer.h); has to live until backward is done
};

at::Tensor column_parallel_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                  ProcessGroup& group, const ParallelLinearOptions& options = {},
                                  const GradSink* sink = nullptr, const LowRank& pair = {});

at::Tensor row_parallel_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                               ProcessGroup& group, const ParallelLinearOptions& options = {},
                               const GradSink* sink = nullptr, const LowRank& pair = {});

}  // namespace concord
