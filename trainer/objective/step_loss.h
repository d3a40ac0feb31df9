// From the losses of tokens to the loss of a step: what is differentiated, and what is logged.
//
// With calculate_per_token_loss every counted token has the same weight: the sum is differentiated, and finalize_grads
// divides the gradients by the number of tokens counted over all data- and context-parallel ranks and micro-batches of
// the step. Without it, every micro-batch has the same weight, however many tokens it counts (ROLL's default): its
// mean, averaged over micro-batches here and over dp x cp ranks by the reduction. A context-parallel rank has a part of
// a micro-batch's tokens, while n counts the whole: sum * cp / n, averaged over cp, is the mean.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "core/models/micro_batch.h"
#include "core/pipeline/model_stage.h"

namespace concord {

struct LossRule {
  bool per_token = true;
  int64_t cp = 1;
  int64_t dp = 1;
  bool pairs = false;  // the losses are those of pairs: read pair for token
};

// Tokens or pairs of a micro-batch that count, all context-parallel parts.
int64_t counted_in(const MicroBatch& batch, const LossRule& rule);

// What the token losses of each micro-batch are multiplied by, for ModelStage::begin. |batches| should be on the host:
// counting on a device means waiting for it.
std::vector<double> loss_weights(std::span<const MicroBatch> batches, const LossRule& rule);

// What the losses of the routers of each micro-batch are multiplied by. These are sums over the tokens of a context-
// parallel part that add up to the loss of the micro-batch, and the step's loss has their mean: over micro-batches and
// dp ranks as they are, or per token each weighted by the tokens that it counts, since the sum is divided by all of
// these. (Megatron weights it by all tokens of a micro-batch then, counted or not, so that the loss would grow with the
// share of ignored labels.)
std::vector<double> router_loss_weights(std::span<const MicroBatch> batches, const LossRule& rule);

// This rank's part of what is logged, after a run of |stage|: a loss for each micro-batch, in 32 bits on the device;
// none but on the last stage. Their sum is per token the sum of the losses; else a part of the mean, the whole of which
// is the sum over dp x cp ranks. |weights| are those of loss_weights.
at::Tensor logged_losses(const ModelStage& stage, std::span<const double> weights, const LossRule& rule);

}  // namespace concord
