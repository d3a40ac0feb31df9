#include "core/data_parallel/finalize_grads.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

namespace concord {
namespace {

// Sums this rank's part of the gradients of the parameters selected by |chosen| over groups of |kind|. The ranks of
// such a group own the same parts: they have the same index in their data-parallel groups. Neighbours are one tensor,
// which saves copies.
template <class Chosen>
void sum_over(DistributedDataParallel& ddp, GroupKind kind, const Chosen& chosen) {
  std::vector<at::Tensor> grads;
  for (const GradBuffer* buffer : ddp.buffers()) {
    std::vector<BufferRange> ranges;
    for (const BucketPlan::Bucket& bucket : buffer->plan().buckets) {
      for (const BucketPlan::Slot& slot : bucket.slots) {
        if (!chosen(*buffer->parameters()[slot.parameter])) continue;
        for (const BufferRange& owned : buffer->owned()) {
          const BufferRange range = intersection(owned, {slot.begin, slot.end});
          if (range.size() == 0) continue;
          if (!ranges.empty() && ranges.back().end == range.begin) {
            ranges.back().end = range.end;
          } else {
            ranges.push_back(range);
          }
        }
      }
    }
    for (const BufferRange& range : ranges) grads.push_back(GradBuffer::part(buffer->grads(), range));
  }
  if (!grads.empty()) ddp.job().group(kind).all_reduce_coalesced(grads).wait();
}

bool has_peers(ParallelContext& job, GroupKind kind) { return job.has_group(kind) && job.group(kind).size() > 1; }

int64_t tokens_of_step(ParallelContext& job, int64_t own) {
  if (!has_peers(job, GroupKind::dp_cp)) return own;
  const at::Tensor tokens = at::full({1}, own, at::TensorOptions(job.torch_device()).dtype(at::kLong));
  job.group(GroupKind::dp_cp).all_reduce(tokens).wait();
  return tokens.item<int64_t>();
}

}  // namespace

int64_t finalize_grads(DistributedDataParallel& ddp, const FinalizeOptions& options) {
  const at::NoGradGuard no_grad;
  ParallelContext& job = ddp.job();
  ddp.finish_grad_sync();
  if (has_peers(job, GroupKind::tp)) {
    sum_over(ddp, GroupKind::tp, [](const Parameter& p) { return p.partial_over_tp && !p.expert; });
  }
  if (has_peers(job, GroupKind::etp)) {
    sum_over(ddp, GroupKind::etp, [](const Parameter& p) { return p.partial_over_tp && p.expert; });
  }
  if (has_peers(job, GroupKind::embedding)) {
    sum_over(ddp, GroupKind::embedding, [](const Parameter& p) { return p.shared_embedding; });
  }
  if (!options.tokens) return 0;
  const int64_t tokens = tokens_of_step(job, *options.tokens);
  if (!options.divide || !ddp.options().calculate_per_token_loss || tokens == 0) return tokens;
  for (const GradBuffer* buffer : ddp.buffers()) {
    for (const BufferRange& range : buffer->owned()) {
      GradBuffer::part(buffer->grads(), range).mul_(1.0 / static_cast<double>(tokens));
    }
  }
  return tokens;
}

}  // namespace concord
