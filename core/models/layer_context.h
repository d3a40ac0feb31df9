// What the parts of a layer are built from and called with.
//
// Tensors of layers carry their shape in their names, a letter a dimension:
//   s   this rank's tokens, S / cp
//   p   those of them that it has between layers, S': s, or s / tp under sequence parallelism
//   b   batch; 1 where sequences are packed
//   h   hidden size
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/mesh/process_group.h"
#include "core/models/config.h"
#include "core/models/parameter.h"
#include "core/ops/rms_norm.h"
#include "core/parallel/recompute.h"

namespace concord {

// The same for all layers of a chunk, which owns it. Groups and streams belong to the parallel context.
struct LayerContext {
  ModelConfig config;
  RecomputeArgs recompute;
  bool sequence_parallel = false;
  bool gathers_keys = false;  // context parallelism by all-gather instead of a ring
  ProcessGroup* tp = nullptr;
  ProcessGroup* cp = nullptr;
  RngTracker* rng = nullptr;
  // By the name of core/models/parameter_plan.h; null if the model has none.
  std::function<Parameter*(const std::string& name)> find;
};

struct RouterRecord;

// What all layers need of a micro-batch. Shared with what is recomputed in backward.
struct LayerInputs {
  at::Tensor cos, sin;                   // of rope: [s, 1 or b, r]
  std::vector<int64_t> cu_seqlens;       // of the whole; empty: not packed
  std::shared_ptr<RouterRecord> router;  // what layers with experts did; null: nobody wants to know
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
// |x|, normed where there is a norm.
inline at::Tensor normed(const at::Tensor& x, const Parameter* norm, const LayerContext& context) {
  return norm == nullptr ? x : rms_norm(x, norm->used(), context.config.rms_norm_eps);
}

// function(x), saved, or recomputed in backward.
template <class Function>
at::Tensor recompute_if(bool again, const LayerContext& context, const at::Tensor& x, Function function) {
  if (!again) return function(x);
  const auto call = [function](const std::vector<at::Tensor>& inputs) { return std::vector{function(inputs[0])}; };
  return recompute(call, {x}, *context.rng)[0];
}

}  // namespace concord
