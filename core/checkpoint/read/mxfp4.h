// Weights of experts that files have in MXFP4 (OCP Microscaling Formats 1.0), as GPT-OSS is published: in place of NAME
// [experts, in, out] there are NAME_blocks [experts, out, in / 32, 16], two 4-bit floats per byte, that in its lower
// half first, and NAME_scales [experts, out, in / 32], the exponents of powers of two, plus 127. A value is element *
// scale, which bf16 has exactly. Pure; threads: any.
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
  // Of the weight |name|, of |shape|. Throws ConfigError, with the file, the tensor and both values: no blocks or
  // scales, of another shape or type, or rows that are no multiple of 32.
  Mxfp4Weight(const safetensors::Weights& weights, const std::string& name, std::span<const int64_t> shape);

  // Elements of the weight, from number |first| on in row-major order, as values.
  void decode(int64_t first, std::span<float> out) const;
  // The part of the file that has the |count| elements from |first| on: the blocks of their experts.
  std::span<const std::byte> bytes(int64_t first, int64_t count) const;

  // The blocks of |name|; null: files have none.
  static const safetensors::Weights::Tensor* blocks_of(const safetensors::Weights& weights, const std::string& name);
  // The weight that a tensor of this name is a part of; empty: none.
  static std::string_view weight_of(std::string_view name);

 private:
  int64_t rows_ = 0, columns_ = 0;  // of an expert: in, out
  std::span<const std::byte> blocks_, scales_;
};

}  // namespace concord
