// The choices of a chunk's routers for one micro-batch, and the losses computed from them.
//
// Shared by the layers of a forward and their backward, which for pooled_aux_loss needs the counts of all layers: by
// then all have arrived, also those of other stages (core/pipeline/passed_counts.h). A recomputed layer writes the same
// values again. Threads: same as ModelChunk.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/models/layers/layer_context.h"
#include "core/models/layers/router_losses.h"
#include "core/ops/moe/moe_router.h"

namespace concord {

// Expert counts per layer of a chunk, [1, experts], summed over the micro-batches of a step so far and over all ranks
// that share the layer.
struct CountsOfStep {
  std::vector<at::Tensor> layers;
};

struct RouterRecord {
  struct Layer {
    at::Tensor chosen;   // fp32 [rows, experts]: this rank's tokens that chose an expert
    at::Tensor dropped;  // fp32 [experts]: those of them that it has no room for; undefined if all have room
    // The counts that losses use, summed over all tp and cp ranks that share the micro-batch's tokens; for
    // global_aux_loss [1, experts] of the step so far. Undefined if no loss needs them.
    at::Tensor chosen_by_all;
    at::Tensor scores;     // fp32 or fp64 [rows, experts]: the sum of what losses balance, of this rank's tokens
    at::Tensor squared_z;  // fp32 or fp64 scalar: the sum of logsumexp^2 of this rank's tokens
  };

  RouterLosses losses;
  double weight = 1;       // of the losses, in backward
  int64_t rows = 0;        // rows of the micro-batch
  int64_t row_tokens = 0;  // tokens per row, over all cp ranks
  int64_t experts = 0;
  int64_t choices = 0;                 // of a token
  int64_t sparse_layers = 0;           // of the whole model
  std::vector<Layer> layers;           // all layers of the model; empty for layers without experts or on other stages
  std::shared_ptr<CountsOfStep> step;  // for global_aux_loss; else null
  at::Tensor chosen_in_all_layers;     // [1, experts], in backward, if there are other stages that count too

  int64_t tokens() const { return rows * row_tokens; }
};

// Returns the weights of |routing| with the router losses attached: forward changes nothing, backward adds their
// gradient to that of |logits_pbe|. Writes layer |number| of |record|. Every tp and cp rank calls it. Waits: for them
// if a loss needs counts.
at::Tensor with_router_losses(const at::Tensor& logits_pbe, const Routing& routing, int64_t number,
                              const LayerContext& context, const std::shared_ptr<RouterRecord>& record);

// Returns the counts that the losses of this chunk's layers use, summed over layers: fp32 [1, experts].
at::Tensor chosen_in_own_layers(const RouterRecord& record);

// Returns this rank's part of the router losses of its chunk, not weighted: the balancing loss and the z-loss, [2] on
// the device; undefined if there are none. The whole is the sum over cp, under sequence parallelism tp, and pp.
at::Tensor router_loss_parts(const RouterRecord& record);

}  // namespace concord
