#include "core/safetensors/dtype.h"

#include <iterator>

namespace concord::safetensors {
namespace {

struct Entry {
  DType dtype;
  const char* text;
  int64_t size;
};

// In enumeration order.
constexpr Entry kTypes[] = {
    {DType::kBool, "BOOL", 1},      {DType::kU8, "U8", 1},          {DType::kI8, "I8", 1},
    {DType::kF8E5M2, "F8_E5M2", 1}, {DType::kF8E4M3, "F8_E4M3", 1}, {DType::kF8E8M0, "F8_E8M0", 1},
    {DType::kI16, "I16", 2},        {DType::kU16, "U16", 2},        {DType::kF16, "F16", 2},
    {DType::kBF16, "BF16", 2},      {DType::kI32, "I32", 4},        {DType::kU32, "U32", 4},
    {DType::kF32, "F32", 4},        {DType::kI64, "I64", 8},        {DType::kU64, "U64", 8},
    {DType::kF64, "F64", 8},        {DType::kC64, "C64", 8}};

constexpr bool in_order() {
  for (size_t i = 0; i < std::size(kTypes); ++i) {
    if (static_cast<size_t>(kTypes[i].dtype) != i) return false;
  }
  return true;
}
static_assert(in_order());

}  // namespace

const char* to_string(DType dtype) { return kTypes[static_cast<size_t>(dtype)].text; }

int64_t size_of(DType dtype) { return kTypes[static_cast<size_t>(dtype)].size; }

std::optional<DType> parse_dtype(std::string_view text) {
  for (const Entry& entry : kTypes) {
    if (text == entry.text) return entry.dtype;
  }
  return std::nullopt;
}

std::string dtype_list() {
  std::string list;
  for (const Entry& entry : kTypes) list += (list.empty() ? "" : ", ") + std::string(entry.text);
  return list;
}

}  // namespace concord::safetensors
