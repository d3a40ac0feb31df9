#include "core/optim/main_weights.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include "core/base/config_error.h"
#include "core/base/stable_hash.h"
#include "core/ops/dropout.h"
#include "core/torch/remainder.h"

namespace concord {
namespace {

// Returns the low (0) or the high (1) halves of fp32 numbers or 32-bit words; a view.
at::Tensor half_of(const at::Tensor& wide, int64_t which) {
  return wide.view(at::kShort).view({-1, 2}).select(1, which);
}

// Returns words below 2^16 for the elements at |runs|, and 0 for others.
at::Tensor noise_of(const at::Tensor& wide, const std::vector<ShardRun>& runs, int64_t update) {
  const uint64_t key = stable_hash("stochastic_round") + static_cast<uint64_t>(update);
  const at::Tensor words = at::zeros({wide.numel()}, wide.options().dtype(at::kInt));
  for (const ShardRun& run : runs) {
    draw_bits(words.narrow(0, run.local, run.count), {key, stable_hash(run.tensor), static_cast<uint64_t>(run.offset)},
              {run.run_length, run.run_stride});
  }
  half_of(words, 1).zero_();
  return words;
}

}  // namespace

c10::ScalarType main_weights_type(const StatePrecision& precision, c10::ScalarType parameter) {
  const MainParamsType type = precision.main_params_dtype;
  if (type == MainParamsType::fp32 || parameter == at::kFloat) return at::kFloat;
  if (parameter != at::kBFloat16) {
    throw ConfigError(fmt::format(
        "main_params_dtype is {} and parameters are {}; must be bf16, whose bits are the upper half of those of an "
        "fp32 number; train with bf16, or set main_params_dtype to fp32",
        name_of(type), c10::toString(parameter)));
  }
  if (type == MainParamsType::remainder) return at::kShort;
  return type == MainParamsType::kahan_sum ? at::kBFloat16 : at::ScalarType::Undefined;
}

void stochastic_round(const at::Tensor& wide, const std::vector<ShardRun>& runs, int64_t update,
                      const at::Tensor& values) {
  // With n from 0 to 2^16 - 1, low + n carries into the high half for |low| of the 2^16 values of n. NaNs would
  // overflow.
  const at::Tensor noise = noise_of(wide, runs, update).mul_(wide.eq(wide));
  wide.view(at::kInt).add_(noise);
  values.view(at::kShort).copy_(half_of(wide, 1));
}

void load_weights(const Segment& segment, const at::Tensor& wide) {
  const at::Tensor& kept = segment.remainder;
  if (kept.defined() && kept.scalar_type() == at::kShort) return join_remainder(segment.values, kept, wide);
  wide.copy_(segment.values);
  if (kept.defined()) wide.add_(kept.to(at::kFloat));
}

at::Tensor wide_weights(const Segment& segment) {
  if (!segment.has_narrow_main()) return segment.weights;
  // Those of Muon may be offloaded, but its parameters are on the device.
  Segment here = segment;
  if (here.remainder.defined()) here.remainder = here.remainder.to(here.values.device());
  const at::Tensor wide = at::empty({segment.size()}, segment.values.options().dtype(at::kFloat));
  load_weights(here, wide);
  return wide;
}

void store_weights(const Segment& segment, const at::Tensor& wide, int64_t update) {
  if (!segment.has_narrow_main()) {
    if (!wide.is_same(segment.weights)) segment.weights.copy_(wide);
    return;
  }
  const at::Tensor here = wide.to(segment.values.device());
  if (!segment.remainder.defined()) return stochastic_round(here, segment.runs, update, segment.values);
  const at::Tensor kept = segment.remainder.to(here.device());
  if (kept.scalar_type() == at::kShort) {
    split_remainder(here, segment.values, kept);
  } else {
    segment.values.copy_(here);
    kept.view(at::kShort).copy_(half_of(here.sub_(segment.values.to(at::kFloat)), 1));
  }
  if (!kept.is_same(segment.remainder)) segment.remainder.copy_(kept);
}

void swap_weights(const Segment& segment, bool is_swapped) {
  const at::Tensor& average = segment.average;
  const bool has_remainder = segment.remainder.defined() && segment.remainder.scalar_type() == at::kShort;
  if (!segment.has_narrow_main() || has_remainder) {
    const at::Tensor weights = wide_weights(segment).clone();
    store_weights(segment, average, 0);
    return void(average.copy_(weights));
  }
  const at::Tensor here = segment.values.to(average.device()).clone();  // the weights; or the rounded average
  if (is_swapped) {
    const at::Tensor low = half_of(average, 0).clone(), weights = half_of(average, 1).clone();
    join_remainder(here, low, average);
    segment.values.copy_(weights.view(at::kBFloat16));
  } else {
    const at::Tensor high = at::empty_like(here), low = at::empty_like(here, at::kShort);
    split_remainder(average, high, low);
    half_of(average, 0).copy_(low);
    half_of(average, 1).copy_(here.view(at::kShort));
    segment.values.copy_(high);
  }
}

}  // namespace concord
