// The loops of blocks of 8-bit codes (core/ops/optimizer/block_codes.h), with its bits.
#pragma once

#include <array>
#include <cstdint>

#include "platform/base/code_buckets.hpp"

namespace concord::ops {

// The fractions of a map, and which code is the nearest to a number.
struct CodeLookup {
  std::array<float, codes::kCount> fractions;
  std::array<uint32_t, codes::kBuckets> positive, negative;

  explicit CodeLookup(const float* table);  // the elements of a code_table
};

// Sets |codes| of |blocks| * 256 |values|, and a scale for each block of at least |min_scale|.
void encode_blocks(const CodeLookup& lookup, float min_scale, int64_t blocks, const float* values, uint8_t* codes,
                   float* scales);
void decode_blocks(const CodeLookup& lookup, int64_t blocks, const uint8_t* codes, const float* scales, float* values);

}  // namespace concord::ops
