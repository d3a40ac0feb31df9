// Linear layers sharded over a tensor-parallel group, with communication that overlaps their GEMMs.
//
//   column  weight [out / n, in], a part of the outputs: x is whole, or split along its tokens (sequence parallelism);
//           y is split along its last dim
//   row     weight [out, in / n], a part of the inputs: x is split along its last dim, y is whole, or split along its
//           tokens; the bias [out] is added after the sum
//
// Tokens are dim 0. Under sequence parallelism a column layer saves only its own tokens and gathers the others again in
// backward, in parallel with the input gradient; the reduction of that gradient runs in parallel with the weight
// gradient. Gradients of biases and norms of a layer that processes only its own tokens are partial over the group:
// finalize_grads reduces them. Sinks and wgrad: core/ops/linear.h. Throws ConfigError with the layer's name, the sizes
// and the degree. |group| must live until backward is done.
//
// A LoRA adapter (low_rank.h) of a layer is sharded like the layer. Only its inner activations, of the size of its
// rank, are communicated:
//   column  A is whole, applied to the local x; B is sharded by outputs. The gradient of A is partial over the group if
//           x is split along tokens
//   row     A is sharded by inputs; B is whole, applied to the sum. The gradient of B is partial over the group if y is
//           split along tokens
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
  std::string name = "linear";     // used in error messages
  bool sequence_parallel = false;  // the side that is not split by features is split along tokens
  // row: number of chunks of tokens; the reduction of one overlaps with the GEMM of the next. The result does not
  // depend on it. Tokens that are not divisible by it (times the group under sequence parallelism) are computed in one
  // chunk.
  int64_t pieces = 1;
  // NF4 values of the weight, dequantised in forward and again in backward; only the shape and type of |weight| are
  // then used. Must live until backward is done.
  const Nf4Weight* nf4 = nullptr;
  Fp8Layer* fp8 = nullptr;  // FP8 GEMMs (core/ops/precision/fp8_layer.h); must live until backward is done
};

at::Tensor column_parallel_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                  ProcessGroup& group, const ParallelLinearOptions& options = {},
                                  const GradSink* sink = nullptr, const LowRank& pair = {});

at::Tensor row_parallel_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                               ProcessGroup& group, const ParallelLinearOptions& options = {},
                               const GradSink* sink = nullptr, const LowRank& pair = {});

}  // namespace concord
