// The last reductions of a step, in the one order that is correct for all layouts (Megatron's finalize_model_grads):
//   1. over data and context parallel ranks (the reductions that are still pending)
//   2. parameters whose gradient is partial over tp (norms and biases under sequence parallelism), over tp
//   3. embeddings that the first and the last stage share, over the embedding group
//   4. per-token loss: divided by the number of counted tokens of the whole step
#pragma once

#include <cstdint>
#include <optional>

#include "core/data_parallel/ddp.h"

namespace concord {

struct FinalizeOptions {
  // Tokens that the losses on this rank counted in this step, over all micro-batches, in its own context-parallel part
  // of the sequences. With calculate_per_token_loss the sum over data x context parallel ranks divides the gradients.
  // (Counting whole sequences here would make gradients cp times too small.) nullopt: not counted, valid only if all
  // micro-batches have the same weight.
  std::optional<int64_t> tokens = std::nullopt;
  // Divide the gradients by that sum here. If false, the caller does: Optimizer::measure and update divide in their own
  // passes (StepSettings::grad_divisor).
  bool divide = true;
};

// All ranks of the job call it. Returns the number of tokens of the whole step, if counted; if it is 0, the gradients
// belong to no loss, and no update should be made.
int64_t finalize_grads(DistributedDataParallel& ddp, const FinalizeOptions& options = {});

}  // namespace concord
