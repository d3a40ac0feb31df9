// Activation recomputation: the activations of a part of the model are not saved for backward but recomputed there.
//
// Example, given at::Tensor layer(const at::Tensor&), const at::Tensor& x, RngTracker& rng:
//   #include <ATen/core/Tensor.h>
//   const auto forward = [&](const std::vector<at::Tensor>& inputs) { return std::vector{layer(inputs[0])}; };
//   const at::Tensor y = recompute(forward, {x}, rng)[0];
//
// Only the inputs stay in memory. The second run draws the same random numbers (RngTracker::replay), so gradients are
// bitwise identical to those without recomputation. libtorch's own generators are not replayed: recomputed code must
// draw from the tracker. Without gradients this only calls |function|. Threads: same as |function|; backward runs it on
// autograd's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/mesh/rng_tracker.h"
#include "core/parallel/recompute_args.h"

namespace at {
class Tensor;
}

namespace concord {

using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// Holds the inputs of a recomputed part between forward and backward, in place of autograd.
class SegmentInputs {
 public:
  virtual ~SegmentInputs() = default;
  virtual void save(const std::vector<at::Tensor>& inputs) = 0;  // called when the first run begins
  virtual std::vector<at::Tensor> load() = 0;                    // called when the second one begins; the same values
};

// |function| uses no tensor that requires a gradient except its arguments and parameters (leaves). |function|,
// everything it refers to, and |rng| must live until backward. Inputs that require no gradient are allowed. |kept_by|
// null: autograd keeps them.
std::vector<at::Tensor> recompute(TensorFunction function, const std::vector<at::Tensor>& inputs, RngTracker& rng,
                                  std::shared_ptr<SegmentInputs> kept_by = nullptr);

// Returns whether the results of what this thread computes now are differentiated: true in gradient mode, and in the
// first run of recompute()'s |function|, which is not in gradient mode but whose second run is.
bool is_differentiating();

// Frees the memory of |made|, from which all of |users| were computed, and fills it with again() in backward, when the
// gradient of the first of them arrives. For large tensors that are cheap to compute, and are saved because a GEMM
// needs its input for the weight gradient. Nothing is recomputed if |made| was not saved. |again| returns the same
// values in newly allocated memory; its captures live until then. |made| must not be read before backward, nor share
// its memory with a tensor that is. Without gradients this does nothing.
//
// Example, given at::Tensor norm(const at::Tensor&), at::Tensor layer(const at::Tensor&), const at::Tensor& x:
//   #include <ATen/core/Tensor.h>
//   const at::Tensor normed = norm(x);
//   const at::Tensor y = layer(normed);
//   recompute_values(normed, {y}, [=] { return norm(x); });
void recompute_values(const at::Tensor& made, const std::vector<at::Tensor>& users, std::function<at::Tensor()> again);

// A run of layers [begin, end) of a chunk, recomputed as one unit or not at all.
struct LayerRun {
  int64_t begin;
  int64_t end;
  bool recomputed;
  bool operator==(const LayerRun&) const = default;
};

// Returns the runs of a chunk. uniform: units of num_layers layers, the last one shorter, each saves only its input.
// block: the first num_layers layers are one unit each; the others save everything. Selective or none: one run that
// saves what its modules save. Throws ConfigError, with what is allowed, for an invalid number.
std::vector<LayerRun> recompute_plan(const RecomputeArgs& args, int64_t layers);

// Returns whether |module| is recomputed separately: under selective, if args.modules contains it, or is empty and
// |module| is core_attn, Megatron's default.
bool recomputes_module(const RecomputeArgs& args, RecomputeModule module);

}  // namespace concord
