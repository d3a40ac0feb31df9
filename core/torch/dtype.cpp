#include "core/torch/dtype.h"

namespace concord {

std::optional<DType> platform_dtype(c10::ScalarType type) {
  switch (type) {
    case c10::kFloat: return DType::kF32;
    case c10::kDouble: return DType::kF64;
    case c10::kBFloat16: return DType::kBF16;
    case c10::kHalf: return DType::kF16;
    case c10::kChar: return DType::kI8;
    case c10::kShort: return DType::kI16;
    case c10::kInt: return DType::kI32;
    case c10::kLong: return DType::kI64;
    case c10::kByte: return DType::kU8;
    case c10::kBool: return DType::kBool;
    default: return std::nullopt;
  }
}

}  // namespace concord
