#include "core/checkpoint/read/gather_shards.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>

#include "core/checkpoint/hf_plan.h"
#include "core/parallel/async_collectives.h"

namespace concord {
namespace {

using at::Tensor;

// Returns the group whose ranks together hold the whole parameter; nullopt if each rank does.
std::optional<GroupKind> holders(const ShardSpec& spec) {
  std::optional<GroupKind> kind;
  for (const ShardSpec::Dim& dim : spec.dims) {
    if (dim.cut) kind = *dim.cut == ShardAxis::tp ? GroupKind::tp : GroupKind::tp_ep;
  }
  return kind;
}

// Copies the elements of |run| from a rank's flat tensor to their position in the flat global one.
void place_run(const Tensor& global, const Tensor& flat, const ShardRun& run) {
  const Tensor from = flat.narrow(0, run.local, run.count);
  const int64_t rows = run.count / run.run_length;
  const int64_t rest = run.count - rows * run.run_length;
  if (rows > 0) {
    global.as_strided({rows, run.run_length}, {run.run_stride, 1}, run.offset)
        .copy_(from.narrow(0, 0, rows * run.run_length).view({rows, run.run_length}));
  }
  if (rest > 0) {
    global.narrow(0, run.offset + rows * run.run_stride, rest).copy_(from.narrow(0, run.count - rest, rest));
  }
}

}  // namespace

NamedTensors gather_shards(const Tensor& shard, const ShardSpec& spec, ParallelContext& context) {
  const std::optional<GroupKind> kind = holders(spec);
  const Tensor mine = shard.detach().contiguous().view({1, -1});
  const Tensor all = (kind ? gather(mine, context.group(*kind), 0).take() : mine).cpu();
  NamedTensors result;
  for (const GlobalTensor& each : global_tensors(spec)) {
    result.emplace_back(each.name, at::zeros(each.shape, all.options()));
  }
  for (int64_t i = 0; i < all.size(0); ++i) {
    const int64_t rank = kind ? context.group(*kind).ranks()[i] : context.rank();
    for (const ShardRun& run : shard_runs(spec, shard_place(context.layout(), rank))) {
      const auto target =
          std::find_if(result.begin(), result.end(), [&](const auto& each) { return each.first == run.tensor; });
      place_run(target->second.view({-1}), all[i], run);
    }
  }
  return result;
}

}  // namespace concord
