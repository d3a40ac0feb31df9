#include "core/parallel/initialise_weights.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include "core/base/config_error.h"
#include "core/base/stable_hash.h"
#include "core/torch/device.h"
#include "core/torch/dtype.h"
#include "platform/cpp/rng.hpp"

namespace concord {
namespace {

void check_shard(const at::Tensor& shard, const ShardSpec& spec, const std::vector<int64_t>& shape) {
  if (!shard.defined() || shard.sizes() != c10::IntArrayRef(shape) || !shard.is_contiguous()) {
    throw ConfigError(fmt::format("parameter {}: the shard must be a contiguous tensor of [{}], but it is {}",
                                  spec.name, fmt::join(shape, ", "),
                                  shard.defined() ? fmt::format("[{}]", fmt::join(shard.sizes(), ", ")) : "undefined"));
  }
  if (!c10::isFloatingType(shard.scalar_type()) || !platform_dtype(shard.scalar_type())) {
    throw ConfigError(fmt::format("parameter {} has type {}; must be Float, Double, BFloat16 or Half", spec.name,
                                  c10::toString(shard.scalar_type())));
  }
}

}  // namespace

void clear_padding(const at::Tensor& shard, const ShardSpec& spec, const ShardPlace& place) {
  for (size_t d = 0; d < spec.dims.size(); ++d) {
    const ShardSpec::Dim& dim = spec.dims[d];
    if (dim.padded <= dim.size) continue;
    const auto axis = static_cast<int64_t>(d);
    const int64_t begin = (dim.cut ? place[*dim.cut].index : 0) * shard.size(axis);
    const int64_t real = std::clamp<int64_t>(dim.size - begin, 0, shard.size(axis));
    shard.narrow(axis, real, shard.size(axis) - real).zero_();
  }
}

void initialise_weights(const at::Tensor& shard, const ShardSpec& spec, const ShardPlace& place, const WeightInit& init,
                        int64_t seed, const Device& device) {
  if (seed <= 0) throw ConfigError(fmt::format("seed is {}; must be positive", seed));
  check_shard(shard, spec, local_shape(spec, place));
  const at::NoGradGuard no_grad;
  if (init.kind == WeightInit::Kind::constant) {
    shard.fill_(init.value);
  } else {
    const bool normal = init.kind == WeightInit::Kind::normal;
    const Stream stream = torch_stream(device);
    const bool takes_log = init.kind == WeightInit::Kind::log_uniform;
    // Takes logarithms in fp32: those of rounded numbers would be rounded twice.
    const bool is_short = shard.element_size() < 4;
    const at::Tensor drawn = takes_log && is_short ? at::empty_like(shard, at::kFloat) : shard;
    const DType dtype = *platform_dtype(drawn.scalar_type());
    auto* data = static_cast<char*>(drawn.data_ptr());
    for (const ShardRun& run : shard_runs(spec, place)) {
      const Generator::State from{static_cast<uint64_t>(seed), stable_hash(run.tensor),
                                  static_cast<uint64_t>(run.offset)};
      fill_runs(normal ? CONCORD_RNG_NORMAL : CONCORD_RNG_UNIFORM, stream, data + run.local * size_of(dtype), run.count,
                dtype, from, {run.run_length, run.run_stride}, normal ? 0.0 : init.low, init.value);
    }
    if (takes_log) shard.copy_(drawn.log());
  }
  clear_padding(shard, spec, place);
}

}  // namespace concord
