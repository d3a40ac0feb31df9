#include "core/models/adapters/merge_adapter.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "core/base/config_error.h"
#include "core/models/adapters/adapter_delta.h"

namespace concord {
namespace {

using at::Tensor;

// Reads what |read| has of the global tensor of |run| into |flat|, a rank's tensor.
template <class Read>
void for_run(const ShardRun& run, const Tensor& flat, const Read& read) {
  const Tensor values = at::empty({run.count}, at::kDouble);
  double* const out = values.mutable_data_ptr<double>();
  for (int64_t done = 0, row = 0; done < run.count; ++row) {
    const int64_t count = std::min(run.run_length, run.count - done);
    if (!read(run.offset + row * run.run_stride, std::span(out + done, static_cast<size_t>(count)))) return;
    done += count;
  }
  flat.narrow(0, run.local, run.count).copy_(values);
}

}  // namespace

void merge_adapter(const std::string& folder, std::span<Parameter* const> parameters, const ShardPlace& place,
                   const safetensors::Weights& model) {
  const at::NoGradGuard no_grad;
  const AdapterConfig config = read_adapter_config(folder);
  if (config.use_dora) {
    throw ConfigError(fmt::format(
        "{} is an adapter with use_dora, which cannot be added while a model is loaded; merge it with `concord merge`, "
        "and give what that writes as --model",
        folder));
  }
  const AdapterDelta delta(folder);
  delta.check(model);
  AdapterDelta::Cursor cursor(delta);
  for (Parameter* parameter : parameters) {
    Tensor change;  // in fp64 on the host, where sums are rounded once, as by `concord merge`
    for (const ShardRun& run : shard_runs(parameter->spec, place)) {
      const bool is_new = delta.replacement(run.tensor) != nullptr;
      if (!is_new && !delta.changes(run.tensor)) continue;
      if (!change.defined()) change = parameter->value.detach().cpu().to(at::kDouble).contiguous();
      const Tensor flat = change.view({-1}), before = flat.narrow(0, run.local, run.count).clone();
      for_run(run, flat, [&](int64_t first, std::span<double> out) { return cursor.read_any(run.tensor, first, out); });
      if (!is_new) flat.narrow(0, run.local, run.count).add_(before);
    }
    if (change.defined()) parameter->value.copy_(change);
  }
}

}  // namespace concord
