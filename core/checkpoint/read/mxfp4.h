// MXFP4 weights of experts in files (OCP Microscaling Formats 1.0), as published for GPT-OSS: instead of NAME [experts,
// in, out] there are NAME_blocks [experts, out, in / 32, 16], two 4-bit floats per byte, the lower half first, and
// NAME_scales [experts, out, in / 32], the exponents of powers of two, plus 127. A value is element * scale, which is
// exact in bf16. Pure; threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/safetensors/index.h"

namespace concord {

class Mxfp4Weight {
 public:
  // Opens the weight |name| of |shape|. Throws ConfigError, with the file, the tensor and both values, for missing
  // blocks or scales, a different shape or type, or rows that are not a multiple of 32.
  Mxfp4Weight(const safetensors::Weights& weights, const std::string& name, std::span<const int64_t> shape);

  // Decodes elements of the weight, starting at index |first| in row-major order.
  void decode(int64_t first, std::span<float> out) const;
  // Returns the part of the file with |count| elements starting at |first|: the blocks of their experts.
  std::span<const std::byte> bytes(int64_t first, int64_t count) const;

  // Returns the blocks of |name|; null if the files have none.
  static const safetensors::Weights::Tensor* blocks_of(const safetensors::Weights& weights, const std::string& name);
  // Returns the name of the weight that a tensor |name| is a part of; empty if it is not.
  static std::string_view weight_of(std::string_view name);

 private:
  int64_t rows_ = 0, columns_ = 0;  // size of an expert: in, out
  std::span<const std::byte> blocks_, scales_;
};

}  // namespace concord
