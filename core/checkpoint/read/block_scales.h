// FP8 weights in files (F8_E4M3), with a scale per block of rows and columns in a separate tensor: NAME_scale_inv next
// to NAME, as published for DeepSeek V3. A value is element * scale, computed in fp32 like DeepSeek and transformers;
// the caller rounds it to the model's type. Pure; threads: any.
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
  // Reads the scales of |tensor|, for blocks of |block| rows and columns; the last ones may be smaller. Throws
  // ConfigError, with the file, the tensor and both values, for a weight that is not a matrix, missing scales, or
  // scales of a different shape or type.
  BlockScales(const safetensors::Weights& weights, const safetensors::Weights::Tensor& tensor,
              std::span<const int64_t> block);

  // Decodes |elements| of the weight, starting at index |first| in row-major order.
  void decode(std::span<const std::byte> elements, int64_t first, std::span<float> out) const;

  static std::string name_of(std::string_view weight) { return std::string(weight) + kEnding; }
  // Returns the name of the weight whose scales are in a tensor |name|; empty if it is not a scale.
  static std::string_view weight_of(std::string_view name);

 private:
  static constexpr const char* kEnding = "_scale_inv";

  int64_t columns_ = 0;  // columns of the weight
  int64_t block_rows_, block_columns_;
  int64_t blocks_ = 0;  // blocks per row
  std::vector<float> scales_;
};

}  // namespace concord
