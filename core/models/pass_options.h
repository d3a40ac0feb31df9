// Options and results of one forward pass: one micro-batch through one ModelChunk.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/models/token_statistics.h"

namespace concord {

struct CountsOfStep;
struct RouterRecord;

// Receives the output of each part of a model as it is computed: the name of the part ("embedding", "layers.3", "norm",
// "logits") and the tensor of this rank's tokens; logits are [S / cp, B, columns of this tp rank]. A part that is
// recomputed in backward is reported again.
using Observer = std::function<void(const std::string& part, const at::Tensor& output)>;

// The gradient that backward will receive for the loss of every token, as far as forward knows it.
struct ExpectedGrad {
  double value = 0;         // 0: unknown
  bool is_certain = false;  // backward follows, with exactly this gradient
};

struct PassOptions {
  // False: runs the model without its LoRA adapter. Modules that are trained whole are used all the same. Supported
  // without autograd only, since a recomputation would not know of it.
  bool with_adapter = true;
  // Factor of the router losses. These are sums over this rank's tokens that add up to the loss of the micro-batch over
  // its tp and cp ranks, and they only have a gradient: PassOutput::value does not include them.
  double router_loss_weight = 1;
  // Expert counts of the step so far, shared by its passes, for global_aux_loss. Null: the pass is a whole step.
  std::shared_ptr<CountsOfStep> step_counts = {};
  ExpectedGrad loss_grad = {};  // saves time and memory in the output layer, and does not change results
  bool measure_tokens = false;  // fills PassOutput::token_statistics
  Observer observer = {};       // empty: none

  void observe(const std::string& part, const at::Tensor& output) const {
    if (observer) observer(part, output);
  }
};

struct PassOutput {
  // Hidden states for the next stage, [S', B, H]. On the last stage the loss (in a reward model the score) of each of
  // this rank's tokens, [B, S / cp] in fp32 (fp64 for Double): equal on all tp ranks, 0 for ignored labels.
  at::Tensor value;
  // Choices and losses of the routers; null without experts and without autograd.
  std::shared_ptr<RouterRecord> router = {};
  // Statistics of each token on the last stage, if PassOptions asks for them; never in a reward model.
  std::optional<TokenStatistics> token_statistics = {};
  // Loss sum and token count of each MTP depth on this rank, fp32 [depths, 2] on the device. Undefined unless this is
  // the last stage, has MTP layers and runs under autograd.
  at::Tensor mtp_losses = {};
};

}  // namespace concord
