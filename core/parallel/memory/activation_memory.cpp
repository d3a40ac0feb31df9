#include "core/parallel/memory/activation_memory.h"

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
  int64_t tile;   // like |inner|, for one tile of the MLP
  bool in_tiles;
};

LayerBytes layer_bytes(const LayerSizes& s) {
  const int64_t rows = s.sequence_parallel ? s.tokens / s.tp : s.tokens;
  return {.input = rows * s.hidden * s.element_bytes,
          .norm = rows * kNumber,
          .attention = s.tokens * 2 * (s.heads + s.kv_heads) * s.head_dim / s.tp * s.element_bytes,
          .lse = s.tokens * s.heads / s.tp * kNumber,
          .inner = s.tokens * s.inner / s.tp * s.element_bytes,
          .tile = (s.tokens + s.mlp_tiles - 1) / s.mlp_tiles * s.inner / s.tp * s.element_bytes,
          .in_tiles = s.mlp_tiles > 1};
}

SavedActivations attention_half(const LayerBytes& p, const RecomputeArgs& args) {
  const bool norm_again = recomputes_module(args, RecomputeModule::layernorm),
             core_again = recomputes_module(args, RecomputeModule::core_attn);
  return {.inputs = p.input,
          .norms = p.norm + (norm_again ? 0 : p.input),
          .attention = p.attention + (core_again ? 0 : p.lse)};
}

SavedActivations mlp_half(const LayerBytes& p, const RecomputeArgs& args) {
  if (recomputes_module(args, RecomputeModule::mlp)) return {.inputs = p.input};
  const int64_t norms = p.norm + (recomputes_module(args, RecomputeModule::layernorm) ? 0 : p.input);
  if (p.in_tiles) return {.inputs = p.input, .norms = norms};
  return {.inputs = p.input,
          .norms = norms,
          .mlp = recomputes_module(args, RecomputeModule::mlp_act) ? 2 * p.inner : 3 * p.inner};
}

// Returns the additional memory of a layer's recomputed modules during backward: that of its larger half.
int64_t module_again(const LayerBytes& p, const RecomputeArgs& args) {
  if (recomputes_module(args, RecomputeModule::mlp)) return p.input + p.norm + 3 * p.inner;
  const int64_t norm = recomputes_module(args, RecomputeModule::layernorm) ? p.input : 0;
  const int64_t activation = p.in_tiles ? 3 * p.tile : recomputes_module(args, RecomputeModule::mlp_act) ? p.inner : 0;
  return norm + std::max(activation, recomputes_module(args, RecomputeModule::core_attn) ? p.lse : 0);
}

}  // namespace

SavedActivations& SavedActivations::operator+=(const SavedActivations& other) {
  inputs += other.inputs;
  norms += other.norms;
  attention += other.attention;
  mlp += other.mlp;
  return *this;
}

ActivationBytes activation_bytes(const LayerSizes& sizes, const RecomputeArgs& args, int64_t layers) {
  const LayerBytes parts = layer_bytes(sizes);
  SavedActivations layer = attention_half(parts, args);
  layer += mlp_half(parts, args);
  ActivationBytes bytes;
  for (const LayerRun& run : recompute_plan(args, layers)) {
    const int64_t count = run.end - run.begin, inside = count * layer.sum();
    if (run.recomputed) {
      bytes.saved.inputs += parts.input;
    } else {
      for (int64_t i = 0; i < count; ++i) bytes.saved += layer;
    }
    bytes.kept = bytes.saved.sum();
    // Backward reaches a run when the memory of later runs is freed. Its input is included in its inner memory.
    const int64_t again =
        run.recomputed ? inside - parts.input + (parts.in_tiles ? 3 * parts.tile : 0) : module_again(parts, args);
    bytes.peak = std::max(bytes.peak, bytes.kept + again);
  }
  return bytes;
}

}  // namespace concord
