// Element types of safetensors files. Pure; threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace concord::safetensors {

// All types of whole bytes that the format defines. F4 and F6, which pack elements into parts of bytes, are not
// supported.
enum class DType {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64,
  kC64
};

const char* to_string(DType dtype);  // spelled as in files: "BF16"
int64_t size_of(DType dtype);        // bytes per element
std::optional<DType> parse_dtype(std::string_view text);
std::string dtype_list();  // "BOOL, U8, ...", for messages

}  // namespace concord::safetensors
