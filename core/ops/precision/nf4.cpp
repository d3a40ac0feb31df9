#include "core/ops/precision/nf4.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/tensor.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "core/ops/check.h"
#include "core/ops/dispatch.h"
#include "core/ops/visit_type.h"

namespace concord {
namespace ops::nf4_op {
namespace {

using at::Tensor;

constexpr std::array<float, 16> kQuantiles = {
    -1.0F,
    -0.6961928009986877F,
    -0.5250730514526367F,
    -0.39491748809814453F,
    -0.28444138169288635F,
    -0.18477343022823334F,
    -0.09105003625154495F,
    0.0F,
    0.07958029955625534F,
    0.16093020141124725F,
    0.24611230194568634F,
    0.33791524171829224F,
    0.44070982933044434F,
    0.5626170039176941F,
    0.7229568362236023F,
    1.0F,
};
constexpr double kTiny = 1e-38;  // blocks of zeros

Tensor quantiles() { return at::tensor(std::vector<float>(kQuantiles.begin(), kQuantiles.end()), at::kFloat); }

// Returns the two values of each byte.
Tensor pairs() {
  std::vector<float> numbers;
  for (const float high : kQuantiles) {
    for (const float low : kQuantiles) numbers.insert(numbers.end(), {high, low});
  }
  return at::tensor(numbers, at::kFloat).view({-1, 2});
}

// For each element of |blocks| [n, size] divided by the absmax of its block, the nearest of |numbers|; ties go to the
// lower.
struct Nearest {
  Tensor codes, largest;
};
Nearest nearest(const Tensor& blocks, const Tensor& numbers) {
  const Tensor largest = blocks.abs().amax(1);
  const Tensor scaled = (blocks * (1 / largest.clamp_min(kTiny)).unsqueeze(1)).clamp(-1, 1);
  const int64_t count = numbers.size(0);
  const Tensor middles = (numbers.narrow(0, 0, count - 1) + numbers.narrow(0, 1, count - 1)) / 2;
  return {at::bucketize(scaled, middles, /*out_int32=*/true).to(at::kByte), largest};
}

Tensor dequantise(const Tensor& codes, const Tensor& absmax, const Tensor& like) {
  static const auto op = find<Tensor(const Tensor&, const Tensor&, const Tensor&)>("concord::nf4_dequantise");
  return op.call(codes, absmax, like);
}

Tensor reference(const Tensor& codes, const Tensor& absmax, const Tensor& like) {
  const auto wide = sum_type(like.scalar_type());
  const Tensor numbers = pairs().to(codes.device(), wide).index_select(0, codes.reshape({-1}).to(at::kInt));
  const Tensor blocks = numbers.view({-1, kNf4Block}) * absmax.reshape({-1, 1}).to(wide);
  return blocks.view({codes.size(0), 2 * codes.size(1)}).to(like.scalar_type());
}

TORCH_LIBRARY_FRAGMENT(concord, m) { m.def("nf4_dequantise(Tensor codes, Tensor absmax, Tensor like) -> Tensor"); }
TORCH_LIBRARY_IMPL(concord, CompositeExplicitAutograd, m) { m.impl("nf4_dequantise", reference); }

}  // namespace
}  // namespace ops::nf4_op

using at::Tensor;

Nf4Blocks nf4_quantise(const Tensor& weight) {
  using namespace ops::nf4_op;
  ops::check_floating("nf4_quantise", "weight", weight);
  if (weight.dim() != 2 || weight.size(1) % kNf4Block != 0) {
    ops::refuse("nf4_quantise",
                fmt::format("weight is {}; must be [rows, a multiple of {}]", ops::text_of(weight), kNf4Block));
  }
  const int64_t rows = weight.size(0);
  const auto [codes, absmax] = nearest(weight.to(at::kFloat).reshape({-1, kNf4Block}), quantiles());
  const Tensor pairs = codes.view({rows, -1, 2});
  return {pairs.select(2, 0).bitwise_left_shift(4).bitwise_or(pairs.select(2, 1)), absmax.view({rows, -1})};
}

// bitsandbytes' create_dynamic_map: signed, with i of 7 bits for the fraction of numbers around 10^(i - 6).
Tensor absmax_map() {
  std::vector<float> numbers = {0, 1};
  for (int64_t i = 0; i < 7; ++i) {
    const int64_t count = int64_t{1} << i;
    const Tensor ends = at::linspace(0.1, 1, count + 1, at::kFloat);
    const Tensor means = (ends.narrow(0, 0, count) + ends.narrow(0, 1, count)) / 2.0 * std::pow(10.0, i - 6);
    for (int64_t j = 0; j < count; ++j) {
      const float mean = means[j].item<float>();
      numbers.insert(numbers.end(), {mean, -mean});
    }
  }
  std::sort(numbers.begin(), numbers.end());
  return at::tensor(numbers, at::kFloat);
}

QuantisedAbsmax quantise_absmax(const Tensor& absmax) {
  using namespace ops::nf4_op;
  const Tensor flat = absmax.reshape({-1}), mean = flat.mean();
  const int64_t count = flat.size(0), more = (kAbsmaxBlock - count % kAbsmaxBlock) % kAbsmaxBlock;
  const Tensor blocks = at::constant_pad_nd(flat - mean, {0, more}).view({-1, kAbsmaxBlock});
  const auto [codes, scales] = nearest(blocks, absmax_map());
  return {codes.view({-1}).narrow(0, 0, count).view(absmax.sizes()), scales, mean.item<double>()};
}

Tensor nf4_dequantise(const Tensor& codes, const Tensor& absmax, const Tensor& like) {
  const bool fits = codes.dim() == 2 && codes.scalar_type() == at::kByte && absmax.dim() == 2 &&
                    absmax.size(0) == codes.size(0) && absmax.size(1) * kNf4Block == codes.size(1) * 2;
  if (!fits) {
    ops::refuse("nf4_dequantise", fmt::format("codes are {}, absmax {}; must be Byte [rows, columns / 2] and [rows, "
                                              "columns / {}]",
                                              ops::text_of(codes), ops::text_of(absmax), kNf4Block));
  }
  return ops::nf4_op::dequantise(codes, absmax, like);
}

}  // namespace concord
