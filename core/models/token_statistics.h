// What a model makes of each token beside its loss, from the logits of the last stage, for reports: how undecided it
// was and whether it ranked the label first. Without gradients; threads: the one that computes.
//
// Rows are taken some at a time, so that of the logits only a few MiB exist in 32 bits.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/ops/loss/cross_entropy.h"

namespace concord {

// Of this rank's tokens, fp32 [B, S / cp]; 0 where a token does not count.
struct TokenStatistics {
  at::Tensor counts;      // 1 where it does
  at::Tensor entropy;     // of the softmax, in nats
  at::Tensor mean_logit;  // over the vocabulary
  at::Tensor is_first;    // 1 where no logit exceeds the label's, and none before it equals it
};

// |logits_sbv| are the columns of |share|, |labels_sb| as for cross_entropy; padding beyond |vocabulary| does not
// count. Every rank of the share calls it, and all get the same.
TokenStatistics token_statistics(const at::Tensor& logits_sbv, const at::Tensor& labels_sb, int64_t vocabulary,
                                 const VocabShare& share);

}  // namespace concord
