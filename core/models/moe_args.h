// What a user chooses about experts; names without the "moe_" that Megatron has before them. Needs no libtorch.
#pragma once

#include <string>

namespace concord {

struct MoeArgs {
  // How tokens are kept spread over experts: aux_loss, seq_aux_loss and global_aux_loss as in Megatron, pooled_aux_loss
  // as in transformers, none. Empty: pooled_aux_loss if output_router_logits is true in config.json, else aux_loss.
  std::string router_load_balancing_type = "";
  // Of that loss. 0: none; for pooled_aux_loss router_aux_loss_coef of config.json.
  double aux_loss_coeff = 0;
  double z_loss_coeff = 0;                 // of the mean of logsumexp(logits)^2, which keeps logits small; 0: none
  double router_bias_update_rate = 0.001;  // of expert biases after each step, where a model has them; 0: they stay
  // An expert takes at most this multiple of an even share of a router's tokens, the others go without it; 0: all of
  // them (core/ops/moe/moe_capacity.h).
  double expert_capacity_factor = 0;
  std::string token_drop_policy = "probs";  // which ones it keeps: those of the largest weights, or position, the first
  bool pad_expert_input_to_capacity = false;  // experts compute on as many rows as they may take, the others 0
  bool shared_expert_overlap = false;         // the shared expert is computed while tokens are under way between ranks
  bool operator==(const MoeArgs&) const = default;
};

}  // namespace concord
