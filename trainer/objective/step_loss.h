// Computes the loss of a step from the losses of tokens: the differentiated one and the logged one.
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
  bool pairs = false;  // the losses are those of pairs instead of tokens
};

// Returns the number of tokens or pairs of a micro-batch that the loss covers, over all context-parallel parts.
int64_t counted_in(const MicroBatch& batch, const LossRule& rule);

// Returns the factors of the token losses of each micro-batch, for ModelStage::begin. |batches| should be on the host:
// counting on a device waits for it.
std::vector<double> loss_weights(std::span<const MicroBatch> batches, const LossRule& rule);

// Returns the factors of the router losses of each micro-batch. Router losses are sums over the tokens of a
// context-parallel part; the loss of a micro-batch is their sum, and the step's loss contains the mean over
// micro-batches and dp ranks. Per token each is weighted by the tokens that it counts, since the sum is divided by all
// of them. (Megatron then weights by all tokens of a micro-batch, counted or not, so that the loss grows with the
// fraction of ignored labels.)
std::vector<double> router_loss_weights(std::span<const MicroBatch> batches, const LossRule& rule);

// Returns this rank's part of the logged loss after a run of |stage|: one loss per micro-batch, fp32 on the device;
// empty except on the last stage. With per_token their sum is the sum of the token losses; otherwise it is a part of
// the mean, which is the sum over dp x cp ranks. |weights| are those of loss_weights.
at::Tensor logged_losses(const ModelStage& stage, std::span<const double> weights, const LossRule& rule);

}  // namespace concord
