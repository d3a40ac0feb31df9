// Context and inputs of the parts of a layer.
//
// Tensors of layers carry their shape in their names, one letter per dimension:
//   s   this rank's tokens, S / cp
//   p   this rank's tokens between layers, S': s, or s / tp under sequence parallelism
//   b   batch; 1 for packed sequences
//   h   hidden size
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/mesh/process_group.h"
#include "core/models/adapters/adapter_config.h"
#include "core/models/config.h"
#include "core/models/layers/layer_angles.h"
#include "core/models/layers/layer_dropout.h"
#include "core/models/model_options.h"
#include "core/models/moe_args.h"
#include "core/models/pass_options.h"
#include "core/ops/attention/rope.h"
#include "core/ops/attention/rope_angles.h"
#include "core/ops/norm/rms_norm.h"
#include "core/parallel/parameter.h"
#include "core/parallel/recompute.h"

namespace concord {

class Fp8Layer;

// Context shared by all layers of a chunk, which owns it. Groups and streams belong to the parallel context.
struct LayerContext {
  ModelConfig config;
  RecomputeArgs recompute;
  int64_t mlp_tiles = 1;
  MoeArgs moe;
  bool sequence_parallel = false;
  CpCommType cp_comm_type = CpCommType::p2p;
  ProcessGroup* tp = nullptr;
  ProcessGroup* cp = nullptr;
  ProcessGroup* tp_cp = nullptr;  // all that have tokens of a micro-batch
  ProcessGroup* dp_cp = nullptr;  // all that have other tokens of the step
  ProcessGroup* etp = nullptr;    // experts' own: their inner size is split over etp, their number over ep
  ProcessGroup* ep = nullptr;
  ProcessGroup* tp_ep = nullptr;  // both of experts: all that tokens come from
  RngTracker* rng = nullptr;
  std::shared_ptr<const AdapterModules> adapter;  // null: none
  bool adapter_off = false;                       // during a pass without it (PassOptions::with_adapter)
  // Adds the FP8 layer of a weight to the chunk and returns it; null if the layer computes in the model's type.
  std::function<Fp8Layer*(const std::string& weight)> add_fp8;
  // Returns the parameter of this name (core/models/parameter_plan.h); null if the model has none.
  std::function<Parameter*(const std::string& name)> find;
};

class KvCache;
struct RouterRecord;

// Inputs that all layers of a pass share. Kept for recomputation in backward.
struct LayerInputs : LayerAngles {          // rope angles: [s, 1 or b, r]
  std::vector<int64_t> cu_seqlens;          // boundaries of the packed sequences, over all ranks; empty: not packed
  std::shared_ptr<RouterRecord> router;     // record of layers with experts; null: not recorded
  std::optional<LayerDropout> dropout;      // none: nothing is dropped
  mutable int64_t max_tokens_per_rank = 0;  // maximum over the ranks that share experts; 0: not computed yet
  Observer observer;                        // PassOptions::observer; kept for recomputation
  at::Tensor media_tokens;                  // indices of image tokens among the rows of [s b, h]; undefined: none
  KvCache* cache = nullptr;                 // in generation: the keys and values of earlier tokens; null elsewhere
};
using SharedInputs = std::shared_ptr<const LayerInputs>;

// The value of a parameter that may not exist.
inline at::Tensor value_of(const Parameter* parameter) {
  return parameter == nullptr ? at::Tensor() : parameter->used();
}

// The norm |name| of layer |number|; null if |name| is empty.
inline const Parameter* find_norm(const LayerContext& context, int64_t number, const std::string& name) {
  return name.empty() ? nullptr : context.find("model.layers." + std::to_string(number) + "." + name + ".weight");
}
// Returns norm(|x|), or |x| if |norm| is null.
inline at::Tensor normed(const at::Tensor& x, const Parameter* norm, const LayerContext& context) {
  if (norm == nullptr) return x;
  const double eps = context.config.rms_norm_eps;
  return context.config.norms_plus_one ? rms_norm_plus_one(x, norm->used(), eps) : rms_norm(x, norm->used(), eps);
}

// Applies rope to |x| [s, b, heads, n], with the model's layout of pairs.
inline at::Tensor rotated(const at::Tensor& x_sbqn, const RopeAngles& angles, const LayerContext& context) {
  return context.config.interleaved_rope ? rope_interleaved(x_sbqn, angles.cos, angles.sin)
                                         : rope(x_sbqn, angles.cos, angles.sin);
}

// The residual stream between the parts of layers: x plus a branch that has not been added yet, since the next norm
// does so in its own pass.
struct Residual {
  at::Tensor x_pbh;
  at::Tensor branch_pbh = {};  // undefined: there is none

  at::Tensor sum(const LayerContext& context) const {
    return branch_pbh.defined() ? x_pbh.add(branch_pbh, context.config.residual_multiplier) : x_pbh;
  }
};
// Returns the sum of |stream|, and its norm unless |norm| is null.
inline NormedSum normed(const Residual& stream, const Parameter* norm, const LayerContext& context) {
  const ModelConfig& config = context.config;
  if (norm != nullptr && stream.branch_pbh.defined() && !config.norms_plus_one) {
    return add_rms_norm(stream.x_pbh, stream.branch_pbh, norm->used(), config.rms_norm_eps, config.residual_multiplier);
  }
  const at::Tensor sum = stream.sum(context);
  return {sum, normed(sum, norm, context)};
}

// function(x), saved, or recomputed in backward.
template <class Function>
at::Tensor recompute_if(bool again, const LayerContext& context, const at::Tensor& x, Function function) {
  if (!again) return function(x);
  const auto call = [function](const std::vector<at::Tensor>& inputs) { return std::vector{function(inputs[0])}; };
  return recompute(call, {x}, *context.rng)[0];
}

// Frees the norm's result until backward, if the user asked for that. |users|: all tensors computed from it. |context|
// has to outlive backward.
inline void recompute_norm(const NormedSum& made, const Parameter* norm, const LayerContext& context,
                           const std::vector<at::Tensor>& users) {
  if (norm == nullptr || !recomputes_module(context.recompute, RecomputeModule::layernorm)) return;
  const at::Tensor sum_pbh = made.sum;
  recompute_values(made.normed, users, [sum_pbh, norm, &context] { return normed(sum_pbh, norm, context); });
}

// Returns the sum of |stream|, and |function| applied to its norm.
template <class Function>
NormedSum of_normed(const Residual& stream, const Parameter* norm, const LayerContext& context, Function function) {
  const NormedSum made = normed(stream, norm, context);
  const at::Tensor result = function(made.normed);
  recompute_norm(made, norm, context, {result});
  return {made.sum, result};
}

}  // namespace concord
