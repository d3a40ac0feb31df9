// Which losses the routers of a model have in training, from the arguments and config.json. Pure values; threads: any.
//
// With P(e) the sum over tokens of the softmax score of expert e, n(e) the number of tokens that chose it, T tokens, k
// choices of each and E experts, a layer's loss for a micro-batch is
//   aux_loss         c E / (k T^2) sum_e P(e) n(e)                                  Megatron; 1 c if all is even
//   seq_aux_loss     the same for each row of the batch by itself, and the mean of the rows
//   pooled_aux_loss  c E / (L T)^2 sum_e P(e) n(e), P and n over all L layers with experts: one loss for the model
//                                                                                   transformers; k c if all is even
//   z loss           c / T sum_t logsumexp(logits of t)^2
// n has no gradient.
#pragma once

#include "core/models/expert_config.h"
#include "core/models/moe_args.h"

namespace concord {

enum class Balancing { none, aux, sequence_aux, pooled };

struct RouterLosses {
  Balancing balancing = Balancing::none;
  double coefficient = 0;
  double z_coefficient = 0;

  bool balances() const { return balancing != Balancing::none && coefficient > 0; }
  bool any() const { return balances() || z_coefficient > 0; }
};

// Throws ConfigError for an unknown type or a negative coefficient.
RouterLosses router_losses(const MoeArgs& args, const ExpertConfig& experts);

}  // namespace concord
