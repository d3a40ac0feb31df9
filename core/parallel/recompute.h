// Recomputation: what a part of the model computes is not kept for the backward pass but recomputed there.
//
// Example, given at::Tensor layer(const at::Tensor&), const at::Tensor& x, RngTracker& rng:
//   #include <ATen/core/Tensor.h>
//   const auto forward = [&](const std::vector<at::Tensor>& inputs) { return std::vector{layer(inputs[0])}; };
//   const at::Tensor y = recompute(forward, {x}, rng)[0];
//
// Only the inputs stay in memory. The second run draws the same random numbers (RngTracker::replay), so its gradients
// are bit for bit those of a run without recomputation. libtorch's own generators are not replayed: code that is
// recomputed draws from the tracker. Without gradients it is just the call. Threads: those of |function|; backward runs
// it on the thread of autograd.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/mesh/rng_tracker.h"
#include "core/parallel/recompute_args.h"

namespace at {
class Tensor;
}

namespace concord {

using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// |function| uses no tensor that needs a gradient except its arguments and parameters (leaves); it must live, with what
// it refers to, until backward. |rng| as well. Inputs that need no gradient may be among them.
std::vector<at::Tensor> recompute(TensorFunction function, const std::vector<at::Tensor>& inputs, RngTracker& rng);

// Returns whether the results of what this thread computes now are differentiated: true in gradient mode, and in the
// first run of recompute()'s |function|, which is not in gradient mode but whose second run is.
bool is_differentiating();

// Gives back the memory of |made|, from which all of |users| were computed, and fills it with again() in backward,
// when the gradient of the first of them arrives: for what is cheap to compute and large, and is kept because a product
// needs its input for the weight's gradient. Nothing is computed again if nobody kept |made|. |again| returns the
// same values in memory of their own; what it holds lives until then. |made| must not be read before backward, nor
// share its memory with a tensor that is. Without gradients nothing is done.
//
// Example, given at::Tensor norm(const at::Tensor&), at::Tensor layer(const at::Tensor&), const at::Tensor& x:
//   #include <ATen/core/Tensor.h>
//   const at::Tensor normed = norm(x);
//   const at::Tensor y = layer(normed);
//   recompute_values(normed, {y}, [=] { return norm(x); });
void recompute_values(const at::Tensor& made, const std::vector<at::Tensor>& users, std::function<at::Tensor()> again);

// A run of layers [begin, end) of a chunk. Recomputed as one unit, or not at all.
struct LayerRun {
  int64_t begin;
  int64_t end;
  bool recomputed;
  bool operator==(const LayerRun&) const = default;
};

// uniform: the chunk's layers in units of num_layers, the last of them shorter, each keeps its input only. block: the
// first num_layers layers, each a unit; the others keep everything. Selective or nothing: one run that keeps what its
// modules keep. Throws ConfigError, with what is allowed, for invalid names and numbers.
std::vector<LayerRun> recompute_plan(const RecomputeArgs& args, int64_t layers);

// Whether |module| is recomputed on its own: under "selective", where args.modules names it, or names nothing and it is
// core_attn, Megatron's default.
bool recomputes_module(const RecomputeArgs& args, const std::string& module);
const std::vector<std::string>& known_recompute_modules();

}  // namespace concord
