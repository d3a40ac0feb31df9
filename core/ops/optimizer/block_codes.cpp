#include "core/ops/optimizer/block_codes.h"

#include <ATen/ops/amax.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "core/ops/cpu/block_codes.h"

namespace concord {
namespace {

constexpr float kMinScale = 1e-12f;  // for blocks of zeros

// Returns the smallest x that is rounded up to |high|: whose distance from |low|, in fp32, is at least half of that
// between both.
float threshold(float low, float high) {
  const float half = (high - low) * 0.5f;
  float x = low + half;
  while (x - low >= half) x = std::nextafter(x, low);
  while (x - low < half) x = std::nextafter(x, high);
  return x;
}

at::Tensor rows(const at::Tensor& flat) { return flat.view({-1, kStateBlock}); }
at::Tensor column(const at::Tensor& scales) { return scales.view({-1, 1}); }

bool are_flat_on_host(const at::Tensor& values, const at::Tensor& codes, const at::Tensor& scales) {
  return values.is_cpu() && values.scalar_type() == at::kFloat && values.is_contiguous() && codes.is_contiguous() &&
         scales.is_contiguous() && values.numel() == scales.numel() * kStateBlock;
}

const ops::CodeLookup& lookup(CodeMap map) {
  const auto of = [](CodeMap each) { return ops::CodeLookup(code_table(each, at::kCPU).const_data_ptr<float>()); };
  static const ops::CodeLookup both = of(CodeMap::dynamic_signed), none_below_zero = of(CodeMap::dynamic_unsigned);
  return map == CodeMap::dynamic_signed ? both : none_below_zero;
}

}  // namespace

// Computed on the host, so that all devices have the same bits.
const at::Tensor& code_table(CodeMap map, c10::Device device) {
  static std::mutex mutex;
  static std::map<std::pair<CodeMap, std::string>, at::Tensor> all;
  const std::lock_guard lock(mutex);
  at::Tensor& found = all[{map, device.str()}];
  if (!found.defined()) {
    const std::array<float, 256>& fractions = code_fractions(map);
    std::array<float, 512> table{};
    std::ranges::copy(fractions, table.begin());
    for (size_t i = 0; i < 255; ++i) table[256 + i] = threshold(fractions[i], fractions[i + 1]);
    table[511] = std::numeric_limits<float>::infinity();
    found = at::from_blob(table.data(), {2, 256}, at::kFloat).clone().to(device);
  }
  return found;
}

void encode_blocks(const at::Tensor& values, const at::Tensor& table, const at::Tensor& codes,
                   const at::Tensor& scales) {
  scales.copy_(rows(values).abs().amax(1).clamp_min(kMinScale));
  const at::Tensor fractions = rows(values).div(column(scales)).view(-1);
  const at::Tensor thresholds = table.select(0, 1).narrow(0, 0, 255);  // NaN is not above 255 of them either
  codes.copy_(at::bucketize(fractions, thresholds, /*out_int32=*/true, /*right=*/true));
}

void encode_blocks(const at::Tensor& values, CodeMap map, const at::Tensor& codes, const at::Tensor& scales) {
  if (are_flat_on_host(values, codes, scales)) {
    ops::encode_blocks(lookup(map), kMinScale, scales.numel(), values.const_data_ptr<float>(),
                       codes.mutable_data_ptr<uint8_t>(), scales.mutable_data_ptr<float>());
    return;
  }
  encode_blocks(values, code_table(map, values.device()), codes, scales);
}

void decode_blocks(const at::Tensor& codes, const at::Tensor& scales, const at::Tensor& table,
                   const at::Tensor& values) {
  const at::Tensor fractions = table.select(0, 0).index_select(0, codes.to(at::kInt));
  values.copy_(rows(fractions).mul_(column(scales)).view(-1));
}

void decode_blocks(const at::Tensor& codes, const at::Tensor& scales, CodeMap map, const at::Tensor& values) {
  if (are_flat_on_host(values, codes, scales)) {
    ops::decode_blocks(lookup(map), scales.numel(), codes.const_data_ptr<uint8_t>(), scales.const_data_ptr<float>(),
                       values.mutable_data_ptr<float>());
    return;
  }
  decode_blocks(codes, scales, code_table(map, values.device()), values);
}

}  // namespace concord
