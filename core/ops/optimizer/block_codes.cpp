#include "core/ops/optimizer/block_codes.h"

#include <ATen/ops/amax.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>

#include <array>
#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace concord {
namespace {

constexpr double kMinScale = 1e-12;  // for blocks of zeros

// Returns the smallest x that is rounded up to |high|: whose distance from |low|, in fp32, is at least half of that
// between both.
float threshold(float low, float high) {
  const float half = (high - low) * 0.5f;
  float x = low + half;
  while (x - low >= half) x = std::nextafter(x, low);
  while (x - low < half) x = std::nextafter(x, high);
  return x;
}

struct Tables {
  at::Tensor fractions;
  at::Tensor thresholds;  // the code of a value is the number of thresholds <= the value
};

template <size_t count>
at::Tensor copy_on(c10::Device device, std::array<float, count>& values) {
  return at::from_blob(values.data(), {static_cast<int64_t>(count)}, at::kFloat).clone().to(device);
}

// Computed on the host, so that all devices have the same bits.
const Tables& tables(CodeMap map, c10::Device device) {
  static std::mutex mutex;
  static std::map<std::pair<CodeMap, std::string>, Tables> all;
  const std::lock_guard lock(mutex);
  Tables& found = all[{map, device.str()}];
  if (!found.fractions.defined()) {
    std::array<float, 256> fractions = code_fractions(map);
    std::array<float, 255> thresholds{};
    for (size_t i = 0; i < thresholds.size(); ++i) thresholds[i] = threshold(fractions[i], fractions[i + 1]);
    found = {copy_on(device, fractions), copy_on(device, thresholds)};
  }
  return found;
}

at::Tensor rows(const at::Tensor& flat) { return flat.view({-1, kStateBlock}); }
at::Tensor column(const at::Tensor& scales) { return scales.view({-1, 1}); }

}  // namespace

void encode_blocks(const at::Tensor& values, CodeMap map, const at::Tensor& codes, const at::Tensor& scales) {
  scales.copy_(rows(values).abs().amax(1).clamp_min(kMinScale));
  const at::Tensor fractions = rows(values).div(column(scales)).view(-1);
  codes.copy_(at::bucketize(fractions, tables(map, values.device()).thresholds, /*out_int32=*/true, /*right=*/true));
}

void decode_blocks(const at::Tensor& codes, const at::Tensor& scales, CodeMap map, const at::Tensor& values) {
  const at::Tensor fractions = tables(map, values.device()).fractions.index_select(0, codes.to(at::kInt));
  values.copy_(rows(fractions).mul_(column(scales)).view(-1));
}

}  // namespace concord
