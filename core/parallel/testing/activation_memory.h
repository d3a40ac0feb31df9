// What the layers of a model keep for backward, counted as in Korthikanti et al., "Reducing activation recomputation in
// large transformer models" (2022), for the layers of core/models: norms, grouped attention without a matrix of queries
// by keys, SwiGLU, no dropout. Pure arithmetic; threads: any.
//
//   a GEMM keeps its input, a norm its input and one number per token, attention q, k, v, its result and one number
//   per token and head, SwiGLU both its halves. So a layer keeps, for each token,
//     4 H e + 8                        inputs of two norms and of the two GEMMs after them      whole; / tp under SP
//     (2 heads + 2 kv_heads) n e       q, k, v, and the result that the next GEMM takes         / tp
//     4 heads                          log-sum-exp                                              / tp
//     3 inner e                        gate, up and their product                               / tp
// where e are the bytes of an element. What is split by context parallelism is in |tokens|.
#pragma once

#include <cstdint>

#include "core/parallel/recompute.h"

namespace concord {

struct LayerSizes {
  int64_t tokens = 0;  // of a micro-batch on this rank, before sequence parallelism: S / cp * B
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t inner = 0;  // of the MLP
  int64_t element_bytes = 2;
  int64_t tp = 1;
  bool sequence_parallel = false;
};

struct ActivationBytes {
  int64_t kept = 0;  // between forward and backward
  int64_t peak = 0;  // the most in backward, with what is recomputed at the time; without gradients
};

// Of |layers| layers. Selective recomputation recomputes the inside of a module:
//   core_attn   no log-sum-exp is kept      layernorm   nor the norms' results
//   mlp_act     nor the product of gate and up          mlp   only the MLP's input
// Throws ConfigError as recompute_plan does.
ActivationBytes activation_bytes(const LayerSizes& sizes, const RecomputeArgs& args, int64_t layers);

}  // namespace concord
