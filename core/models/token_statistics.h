// Statistics of each token besides its loss, from the logits of the last stage, for logging: entropy, and whether the
// label has the largest logit. Without gradients. Threads: training thread only.
//
// Rows are processed in blocks, so that only a few MiB of the logits exist in fp32.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/ops/loss/cross_entropy.h"

namespace concord {

// Statistics of this rank's tokens, fp32 [B, S / cp]; 0 for tokens that do not count.
struct TokenStatistics {
  at::Tensor counts;      // 1 for tokens that count
  at::Tensor entropy;     // entropy of the softmax, in nats
  at::Tensor mean_logit;  // mean over the vocabulary
  at::Tensor is_first;    // 1 if no logit exceeds the label's and no earlier one equals it
};

// Computes the statistics of |logits_sbv|, the columns of |share|; |labels_sb| as for cross_entropy. Ignores padding
// beyond |vocabulary|. Every rank of the share calls it, and all get the same result.
TokenStatistics token_statistics(const at::Tensor& logits_sbv, const at::Tensor& labels_sb, int64_t vocabulary,
                                 const VocabShare& share);

}  // namespace concord
