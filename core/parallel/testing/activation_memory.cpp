#include "core/parallel/testing/activation_memory.h"

#include <algorithm>

namespace concord {
namespace {

constexpr int64_t kNumber = 4;  // bytes of an fp32 number, whatever the model's dtype

// The terms of a layer's sum, in bytes.
struct LayerBytes {
  int64_t input;      // a tensor between layers
  int64_t norm;       // one number per token
  int64_t attention;  // q, k, v and the result
  int64_t lse;
  int64_t inner;  // gate, up or their product
};

LayerBytes layer_bytes(const LayerSizes& s) {
  const int64_t rows = s.sequence_parallel ? s.tokens / s.tp : s.tokens;
  return {.input = rows * s.hidden * s.element_bytes,
          .norm = rows * kNumber,
          .attention = s.tokens * 2 * (s.heads + s.kv_heads) * s.head_dim / s.tp * s.element_bytes,
          .lse = s.tokens * s.heads / s.tp * kNumber,
          .inner = s.tokens * s.inner / s.tp * s.element_bytes};
}

int64_t attention_half(const LayerBytes& p, const RecomputeArgs& args) {
  const bool norm_again = recomputes_module(args, RecomputeModule::layernorm),
             core_again = recomputes_module(args, RecomputeModule::core_attn);
  return p.input + p.norm + p.attention + (norm_again ? 0 : p.input) + (core_again ? 0 : p.lse);
}

int64_t mlp_half(const LayerBytes& p, const RecomputeArgs& args) {
  if (recomputes_module(args, RecomputeModule::mlp)) return p.input;
  const int64_t inner = recomputes_module(args, RecomputeModule::mlp_act) ? 2 * p.inner : 3 * p.inner;
  return p.input + p.norm + inner + (recomputes_module(args, RecomputeModule::layernorm) ? 0 : p.input);
}

// Returns the additional memory of a layer's recomputed modules during backward: that of its larger half.
int64_t module_again(const LayerBytes& p, const RecomputeArgs& args) {
  if (recomputes_module(args, RecomputeModule::mlp)) return p.input + p.norm + 3 * p.inner;
  const int64_t norm = recomputes_module(args, RecomputeModule::layernorm) ? p.input : 0;
  const int64_t activation = recomputes_module(args, RecomputeModule::mlp_act) ? p.inner : 0;
  return norm + std::max(activation, recomputes_module(args, RecomputeModule::core_attn) ? p.lse : 0);
}

}  // namespace

ActivationBytes activation_bytes(const LayerSizes& sizes, const RecomputeArgs& args, int64_t layers) {
  const LayerBytes parts = layer_bytes(sizes);
  const int64_t layer = attention_half(parts, args) + mlp_half(parts, args);
  ActivationBytes bytes;
  for (const LayerRun& run : recompute_plan(args, layers)) {
    const int64_t inside = (run.end - run.begin) * layer;
    bytes.kept += run.recomputed ? parts.input : inside;
    // Backward reaches a run when the memory of later runs is freed. Its input is included in its inner memory.
    const int64_t again = run.recomputed ? inside - parts.input : module_again(parts, args);
    bytes.peak = std::max(bytes.peak, bytes.kept + again);
  }
  return bytes;
}

}  // namespace concord
