// The last reductions of a step, in the one order that is correct for all layouts (Megatron's finalize_model_grads):
//   1. over data and context parallel ranks (what is left of it)
//   2. parameters whose gradient is partial over tp (norms and biases under sequence parallelism), over tp
//   3. embeddings that the first and the last stage share, over the embedding group
//   4. per-token loss: divided by the number of counted tokens of the whole step
#pragma once

#include <cstdint>
#include <optional>

#include "core/data_parallel/ddp.h"

namespace concord {

struct FinalizeOptions {
  // Tokens that this rank's losses counted in this step: of its own context-parallel part of the sequences, all
  // micro-batches. With calculate_per_token_loss the sum over data x context parallel ranks divides the gradients.
  // (A rank that gave the number of the whole sequence would make gradients cp times too small.)
  // Without it nothing counts them: only if micro-batches weigh the same.
  std::optional<int64_t> tokens = std::nullopt;
  // Whether that sum divides them here. If not, the caller does: Optimizer::measure and update divide in their own
  // passes (StepSettings::grad_divisor).
  bool divide = true;
};

// All ranks of the job call it. Returns the number of tokens of the whole step, as far as it was counted; if that is 0
// the gradients belong to no loss at all, and no update should be made from them.
int64_t finalize_grads(DistributedDataParallel& ddp, const FinalizeOptions& options = {});

}  // namespace concord
