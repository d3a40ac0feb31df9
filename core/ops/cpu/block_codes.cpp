#include "core/ops/cpu/block_codes.h"

#include <algorithm>
#include <bit>

#include "core/ops/cpu/parallel.h"

namespace concord::ops {
namespace {

constexpr int64_t kBlock = 256;
constexpr int64_t kGrain = 64;  // blocks per thread at least
constexpr uint32_t kMagnitude = 0x7fffffff;

// The bits of magnitudes have the order of their values, and NaNs are above all.
float scale_of(float min_scale, const float* values) {
  uint32_t largest = std::bit_cast<uint32_t>(min_scale);
  for (int64_t i = 0; i < kBlock; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(values[i]) & kMagnitude);
  return std::bit_cast<float>(largest);
}

void encode_block(const CodeLookup& lookup, float scale, const float* values, uint8_t* codes) {
  std::array<float, kBlock> fractions;
  for (size_t i = 0; i < kBlock; ++i) fractions[i] = values[i] / scale;
  const uint32_t *const positive = lookup.positive.data(), *const negative = lookup.negative.data();
  for (size_t i = 0; i < kBlock; ++i) {
    codes[i] = static_cast<uint8_t>(codes::by_bucket_or_nan<true>(positive, negative, fractions[i]));
  }
}

}  // namespace

CodeLookup::CodeLookup(const float* table) : fractions(), positive(), negative() {
  const float* const thresholds = table + codes::kCount;
  std::copy_n(table, codes::kCount, fractions.begin());
  for (int i = 0; i < codes::kBuckets; ++i) {
    positive[static_cast<size_t>(i)] = codes::bucket_entry(thresholds, i, false);
    negative[static_cast<size_t>(i)] = codes::bucket_entry(thresholds, i, true);
  }
}

void encode_blocks(const CodeLookup& lookup, float min_scale, int64_t blocks, const float* values, uint8_t* codes,
                   float* scales) {
  parallel(blocks, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      scales[block] = scale_of(min_scale, values + block * kBlock);
      encode_block(lookup, scales[block], values + block * kBlock, codes + block * kBlock);
    }
  });
}

void decode_blocks(const CodeLookup& lookup, int64_t blocks, const uint8_t* codes, const float* scales, float* values) {
  parallel(blocks, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const float scale = scales[block];
      for (int64_t i = block * kBlock; i < (block + 1) * kBlock; ++i) values[i] = lookup.fractions[codes[i]] * scale;
    }
  });
}

}  // namespace concord::ops
