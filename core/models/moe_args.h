// Options of experts, named as in Megatron without "moe_". Needs no libtorch.
#pragma once

#include <string_view>

#include "core/ops/moe/drop_policy.h"

namespace concord {

// How tokens are kept spread over experts: aux_loss, seq_aux_loss and global_aux_loss as in Megatron, pooled_aux_loss
// as in transformers, none. from_config: pooled if output_router_logits is true in config.json, else aux.
enum class Balancing { from_config, aux, sequence_aux, global_aux, pooled, none };
template <>
inline constexpr std::string_view kEnumNames<Balancing>[] = {
    "", "aux_loss", "seq_aux_loss", "global_aux_loss", "pooled_aux_loss", "none"};

struct MoeArgs {
  Balancing router_load_balancing_type = Balancing::from_config;
  // Coefficient of that loss. 0: none; for pooled_aux_loss router_aux_loss_coef of config.json.
  double aux_loss_coeff = 0;
  double z_loss_coeff = 0;  // coefficient of the mean of logsumexp(logits)^2, which keeps logits small; 0: none
  double router_bias_update_rate = 0.001;  // step of expert biases, in models that have them; 0: constant
  // Expert capacity as a multiple of an even share of a router's tokens; tokens beyond it are dropped. 0: unlimited.
  double expert_capacity_factor = 0;
  DropPolicy token_drop_policy = DropPolicy::probs;
  bool pad_expert_input_to_capacity = false;  // experts compute on as many rows as their capacity, padded with 0
  bool shared_expert_overlap = false;         // overlap the shared expert with the all-to-alls
  bool operator==(const MoeArgs&) const = default;
};

}  // namespace concord
