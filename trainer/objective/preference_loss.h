// The losses of preference pairs: a completion that is preferred (chosen) and one that is not (rejected). Pure: tensors
// in, tensors out, differentiable.
//
// With c and j the log-probabilities of the two, the sums over their tokens, c_ref and j_ref the reference's, c' and j'
// the means, D = (c - c_ref) - (j - j_ref), b = pref_beta, e = dpo_label_smoothing, logsig(x) = log 1 / (1 + exp(-x)):
//   sigmoid    -(1 - e) logsig(bD) - e logsig(-bD)                             Rafailov 2023; with e: Mitchell 2023
//   hinge      max(0, 1 - bD)                                                  Zhao 2023
//   ipo        (D' - 1 / (2b))^2, D' as D of the means                         Azar 2023
//   robust     (-(1 - e) logsig(bD) + e logsig(-bD)) / (1 - 2e)                Chowdhury 2024
//   kto_pair   1 - (sig(b (c - c_ref - K_j)) + sig(b (K_c - j + j_ref))) / 2, K the means of the ratios of the
//              micro-batch, at least 0                                         Ethayarajh 2024
//   orpo       -c' - b logsig(log odds(c') - log odds(j'))                     Hong 2024, without a reference
//   simpo      -logsig(b (c' - j') - simpo_gamma)                              Meng 2024, without a reference
// pref_ftx adds that multiple of -c' to each.
#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/arguments/training_arguments.h"

namespace concord {

// One number per pair for each of the two completions: [pairs], floating point.
struct PairTensors {
  at::Tensor chosen, rejected;
};

// Returns the means over |lengths| tokens of completions whose sums are |sums|.
PairTensors token_means(const PairTensors& sums, const PairTensors& lengths);

struct PairLosses {
  at::Tensor losses;    // [pairs]
  PairTensors rewards;  // b (c - c_ref), b (j - j_ref), or with means if the loss uses means; without graph
};

// Returns the losses of pairs. |reference| is ignored by losses without a reference. |lengths| are the numbers of
// predicted tokens per completion. Log-probabilities of hundreds differ by hundredths, so they may be fp64; their
// differences, and everything after them, have type |as|.
PairLosses preference_losses(const PreferenceArguments& arguments, const PairTensors& policy,
                             const PairTensors& reference, const PairTensors& lengths, at::ScalarType as);

// Returns the losses of a reward model from the scores of both completions: -logsig(chosen - rejected) +
// center_rewards_coefficient (chosen + rejected)^2 (Bradley-Terry; Eisenstein 2023). |margins| [pairs] are subtracted
// from the difference; undefined: none.
PairLosses reward_losses(const PreferenceArguments& arguments, const PairTensors& scores,
                         const at::Tensor& margins = {});

}  // namespace concord
