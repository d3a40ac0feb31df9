#include "core/models/precision/quantise_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <map>
#include <vector>

#include "core/base/config_error.h"
#include "core/checkpoint/read/gather_shards.h"

namespace concord {
namespace {

using at::Tensor;

void check_blocks(const Parameter& weight) {
  const int64_t own = weight.value.size(1), inputs = weight.spec.dims[1].size;
  if (own % kNf4Block == 0) return;
  throw ConfigError(fmt::format(
      "quantization_bit: {} has {} inputs, of which a rank has {}; they must be a multiple of the {} elements of a "
      "block; choose a tensor_model_parallel_size that leaves whole blocks, or no quantization_bit",
      weight.spec.name, inputs, own, kNf4Block));
}

// How the absmax of |weight|'s blocks is laid out over ranks.
ShardSpec spec_of_blocks(const Parameter& weight) {
  ShardSpec spec = weight.spec;
  spec.dims[1].size /= kNf4Block;
  return spec;
}

std::shared_ptr<const Nf4Weight> quantised(const Parameter& weight, ParallelContext& context) {
  check_blocks(weight);
  const auto device = weight.value.device();
  const Nf4Blocks own = nf4_quantise(weight.used().detach().cpu());
  const ShardSpec blocks = spec_of_blocks(weight);
  std::map<std::string, QuantisedAbsmax> whole;
  for (const auto& [name, absmax] : gather_shards(own.absmax.to(device), blocks, context)) {
    whole.emplace(name, quantise_absmax(absmax));
  }
  const Tensor codes = at::empty(own.absmax.sizes(), at::kByte), flat = codes.view({-1});
  std::vector<Nf4Weight::Part> parts;
  for (const ShardRun& run : shard_runs(blocks, shard_place(context.layout(), context.rank()))) {
    const QuantisedAbsmax& all = whole.at(run.tensor);
    const int64_t length = std::min(run.run_length, run.count);
    flat.narrow(0, run.local, run.count)
        .view({-1, length})
        .copy_(all.codes.as_strided({run.count / length, length}, {run.run_stride, 1}, run.offset));
    parts.push_back({run, all.scales.to(device), all.mean});
  }
  return std::make_shared<const Nf4Weight>(own.codes.to(device), codes.to(device), std::move(parts));
}

}  // namespace

void quantise_weights(std::span<Parameter* const> parameters, ParallelContext& context) {
  const at::NoGradGuard no_grad;
  for (Parameter* parameter : parameters) {
    if (!parameter->linear || !parameter->frozen) continue;
    parameter->nf4 = quantised(*parameter, context);
    // Whoever reads it as if it were the weight sees that it is not.
    const Tensor none = at::full({1, 1}, std::numeric_limits<double>::quiet_NaN(), parameter->value.options());
    parameter->value = none.expand(parameter->value.sizes());
  }
}

}  // namespace concord
