#include "core/models/gather_shards.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <algorithm>

#include "core/config_error.h"
#include "core/models/hf_plan.h"
#include "core/parallel/moves.h"

namespace concord {
namespace {

using at::Tensor;

bool is_cut(const ShardSpec& spec) {
  bool cut = false;
  for (const ShardSpec::Dim& dim : spec.dims) {
    if (dim.cut && *dim.cut != ShardAxis::tp) {
      throw ConfigError(
          fmt::format("parameter {} is split over {}; only tp can be gathered", spec.name, to_string(*dim.cut)));
    }
    cut |= dim.cut.has_value();
  }
  return cut;
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
  const bool cut = is_cut(spec);
  const Tensor mine = shard.detach().contiguous().view({1, -1});
  const Tensor all = (cut ? gather(mine, context.group(GroupKind::tp), 0).take() : mine).cpu();
  NamedTensors result;
  for (const GlobalTensor& each : global_tensors(spec)) {
    result.emplace_back(each.name, at::zeros(each.shape, all.options()));
  }
  ShardPlace place = shard_place(context.layout(), context.rank());
  ShardPlace::Axis& axis = place.axes[static_cast<size_t>(ShardAxis::tp)];
  for (int64_t rank = 0; rank < all.size(0); ++rank) {
    if (cut) axis.index = rank;
    for (const ShardRun& run : shard_runs(spec, place)) {
      const auto target =
          std::find_if(result.begin(), result.end(), [&](const auto& each) { return each.first == run.tensor; });
      place_run(target->second.view({-1}), all[rank], run);
    }
  }
  return result;
}

}  // namespace concord
