// The activation memory of a model's layers, by the formula of Korthikanti et al., "Reducing activation recomputation
// in large transformer models" (2022), for the layers of core/models: norms, grouped attention without a matrix of
// queries by keys, SwiGLU, no dropout. Pure arithmetic; threads: any.
//
//   A GEMM saves its input, a norm its input and one number per token, attention q, k, v, its output and one number per
//   token and head, SwiGLU both its halves. So a layer saves, for each token,
//     4 H e + 8                        inputs of two norms and of the two GEMMs after them      whole; / tp under SP
//     (2 heads + 2 kv_heads) n e       q, k, v, and the output, which the next GEMM reads       / tp
//     4 heads                          log-sum-exp                                              / tp
//     3 inner e                        gate, up and their product                               / tp
// where e is the size of an element in bytes. |tokens| accounts for context parallelism. Needs no libtorch.
#pragma once

#include <cstdint>

#include "core/parallel/recompute.h"

namespace concord {

struct LayerSizes {
  int64_t tokens = 0;  // tokens of a micro-batch on this rank, before sequence parallelism: S / cp * B
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t inner = 0;      // size of the MLP
  int64_t mlp_tiles = 1;  // tiles in which the MLP is computed, and recomputed in backward
  int64_t element_bytes = 2;
  int64_t tp = 1;
  bool sequence_parallel = false;
};

// Bytes that are saved between forward and backward.
struct SavedActivations {
  int64_t inputs = 0;     // the residual stream: a layer's input, and that of its MLP
  int64_t norms = 0;      // outputs of norms, and their numbers
  int64_t attention = 0;  // q, k, v, the output and the log-sum-exp
  int64_t mlp = 0;        // gate, up and their product
  int64_t sum() const { return inputs + norms + attention + mlp; }
  SavedActivations& operator+=(const SavedActivations& other);
};

struct ActivationBytes {
  SavedActivations saved;
  int64_t kept = 0;  // the sum of |saved|
  int64_t peak = 0;  // maximum in backward, with recomputed activations, without gradients
};

// Returns the bytes of |layers| layers. Selective recomputation recomputes the inside of a module:
//   core_attn   saves no log-sum-exp        layernorm   saves no outputs of norms
//   mlp_act     saves no product of gate and up         mlp   saves only the input of the MLP
// Tiles of the MLP save only its norm's output.
// Throws ConfigError like recompute_plan().
ActivationBytes activation_bytes(const LayerSizes& sizes, const RecomputeArgs& args, int64_t layers);

}  // namespace concord
