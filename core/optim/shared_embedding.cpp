#include "core/optim/shared_embedding.h"

#include "core/mesh/platform_crossing.h"

namespace concord {
namespace {

constexpr int64_t kFirstStage = 0;  // index in the embedding group

// Replaces |tensor| by the bits of the first stage.
void take_bits(const at::Tensor& tensor, ProcessGroup& group, const at::Device& device) {
  if (!tensor.defined()) return;
  const at::Tensor sent = tensor.to(device);
  group.broadcast(sent.view(at::kByte), kFirstStage).wait();
  if (!sent.is_same(tensor)) tensor.copy_(sent);
}

}  // namespace

void sync_shared_embedding(std::span<const Segment> segments, ParallelContext& job) {
  if (!crosses_platforms(job, GroupKind::embedding)) return;
  ProcessGroup& group = job.group(GroupKind::embedding);
  for (const Segment& segment : segments) {
    if (!segment.parameter->shared_embedding) continue;
    const bool is_narrow = segment.has_narrow_main();
    take_bits(segment.weights, group, job.torch_device());
    take_bits(segment.remainder, group, job.torch_device());
    if (is_narrow) take_bits(segment.values, group, job.torch_device());
    if (!is_narrow && segment.values.defined()) segment.values.copy_(segment.weights);
    if (segment.on_host) set_parameter(segment);
  }
}

}  // namespace concord
