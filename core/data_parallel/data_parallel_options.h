// Options of core/data_parallel/ddp.h; independent of libtorch.
#pragma once

#include <cstdint>

namespace concord {

// Named as in Megatron and ROLL.
struct DataParallelOptions {
  bool use_distributed_optimizer = false;  // reduce-scatter; each rank updates its shard (ZeRO-1)
  bool overlap_grad_reduce = true;         // reduce buckets during backward; false: all of them at the end
  bool delay_grad_reduce = false;          // only the first pipeline stage overlaps; the others reduce at the end
  bool overlap_param_gather = false;       // all-gather parameters in parallel with the next forward pass
  bool accumulate_allreduce_grads_in_fp32 = true;
  bool ddp_average_in_collective = false;  // false: scale gradients before they are summed
  bool calculate_per_token_loss = false;   // sum the losses; finalize_grads divides by the number of tokens
  bool check_for_nan_in_grad = false;      // check before each reduction; throws with the parameter and the rank
  int64_t ddp_bucket_size = 0;             // elements; 0: Megatron's rule
  int64_t parameter_alignment = 0;         // BucketOptions::alignment
  bool operator==(const DataParallelOptions&) const = default;
};

}  // namespace concord
