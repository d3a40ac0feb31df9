// Which losses the routers of a model have in training, from the arguments and config.json. Pure values; threads: any.
//
// With P(e) the sum over tokens of the score of expert e, n(e) the number of tokens that have it among their k best
// scores, T tokens and E experts, a layer's loss for a micro-batch is
//   aux_loss         c E / (k T^2) sum_e P(e) n(e)                                  Megatron; 1 c if all is even
//   seq_aux_loss     the same for each row of the batch by itself, and the mean of the rows
//   global_aux_loss  c E / T sum_e P(e) n(e) / sum_f n(f), n over all data-parallel ranks and the micro-batches of the
//                    step so far
//   pooled_aux_loss  c E / (L T)^2 sum_e P(e) n(e), P and n over all L layers with experts: one loss for the model
//                                                                                   transformers; k c if all is even
//   z loss           c / T sum_t logsumexp(logits of t)^2
// n has no gradient. Scores are the softmax over all experts, or sigmoids divided by their sum where a router has them;
// biases and groups that a router chooses by, and the capacity of experts, are not in n, as in Megatron. (Its
// global_aux_loss is divided by the number of data-parallel ranks once more, so that it is weaker the more there are.)
#pragma once

#include "core/models/expert_config.h"
#include "core/models/moe_args.h"

namespace concord {

struct RouterLosses {
  Balancing balancing = Balancing::none;  // not from_config
  double coefficient = 0;
  double z_coefficient = 0;

  bool balances() const { return balancing != Balancing::none && coefficient > 0; }
  bool any() const { return balances() || z_coefficient > 0; }
};

// Throws ConfigError for a negative coefficient, and for the loss of transformers with sigmoid scores.
RouterLosses router_losses(const MoeArgs& args, const ExpertConfig& experts);

}  // namespace concord
