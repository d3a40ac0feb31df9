// Conversion between element types of files and of libtorch.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string_view>

#include "core/safetensors/dtype.h"

namespace concord {

// Returns nullopt unless the type is F64, F32, F16 or BF16.
inline std::optional<c10::ScalarType> float_type(safetensors::DType dtype) {
  switch (dtype) {
    case safetensors::DType::kF64: return c10::ScalarType::Double;
    case safetensors::DType::kF32: return c10::ScalarType::Float;
    case safetensors::DType::kF16: return c10::ScalarType::Half;
    case safetensors::DType::kBF16: return c10::ScalarType::BFloat16;
    default: return std::nullopt;
  }
}

inline std::optional<safetensors::DType> file_type(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Double: return safetensors::DType::kF64;
    case c10::ScalarType::Float: return safetensors::DType::kF32;
    case c10::ScalarType::Half: return safetensors::DType::kF16;
    case c10::ScalarType::BFloat16: return safetensors::DType::kBF16;
    default: return std::nullopt;
  }
}

// Returns the name of |type| in config.json; "" for other types.
inline const char* config_dtype(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Double: return "float64";
    case c10::ScalarType::Float: return "float32";
    case c10::ScalarType::Half: return "float16";
    case c10::ScalarType::BFloat16: return "bfloat16";
    default: return "";
  }
}

// Inverse of config_dtype; nullopt for other names.
inline std::optional<c10::ScalarType> find_config_dtype(std::string_view name) {
  using enum c10::ScalarType;
  for (const c10::ScalarType type : {Float, BFloat16, Half, Double}) {
    if (config_dtype(type) == name) return type;
  }
  return std::nullopt;
}

}  // namespace concord
