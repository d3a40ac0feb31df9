// Weights that files have as 8-bit floats (F8_E4M3), with a scale for each block of rows and columns in a tensor of
// their own: NAME_scale_inv next to NAME, as DeepSeek V3 is published. A value is element * scale, computed in fp32 as
// DeepSeek and transformers do; rounding it to the model's type is left to the caller. Pure; threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/safetensors/index.h"

namespace concord {

class BlockScales {
 public:
  // Those of |tensor|, for blocks of |block| rows and columns; the last ones may be smaller. Throws ConfigError, with
  // the file, the tensor and both values: a weight that is not a matrix, no scales, scales of another shape or type.
  BlockScales(const safetensors::Weights& weights, const safetensors::Weights::Tensor& tensor,
              std::span<const int64_t> block);

  // |elements| of the weight, from number |first| on in row-major order, as values.
  void decode(std::span<const std::byte> elements, int64_t first, std::span<float> out) const;

  static std::string name_of(std::string_view weight) { return std::string(weight) + kEnding; }
  // The weight that a tensor of this name has the scales of; empty: none.
  static std::string_view weight_of(std::string_view name);

 private:
  static constexpr const char* kEnding = "_scale_inv";

  int64_t columns_ = 0;  // of the weight
  int64_t block_rows_, block_columns_;
  int64_t blocks_ = 0;  // in a row of them
  std::vector<float> scales_;
};

}  // namespace concord
