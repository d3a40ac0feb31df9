// The header of a safetensors file: 8 bytes of length (little endian), JSON, then the data of the tensors without gaps.
//
// Files are untrusted until parsed. parse_header accepts only headers that are valid in every detail, so that code with
// a Header may use its offsets without further checks. Pure; threads: any.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/safetensors/dtype.h"

namespace concord::safetensors {

inline constexpr uint64_t kLengthBytes = 8;
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // same limit as the reference implementation
inline constexpr size_t kMaxDims = 64;

// The name, type and shape of a tensor, without its position.
struct TensorShape {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape = {};  // empty: a scalar
  bool operator==(const TensorShape&) const = default;
};

struct TensorInfo : TensorShape {
  uint64_t begin = 0;  // in bytes from the start of the data; not always a multiple of the element's size
  uint64_t end = 0;

  uint64_t bytes() const { return end - begin; }
  int64_t elements() const { return static_cast<int64_t>(bytes()) / size_of(dtype); }
};

using Metadata = std::map<std::string, std::string>;

struct Header {
  std::vector<TensorInfo> tensors;  // in the order of their data
  Metadata metadata;
};

// Parses |json|, the header of |file| (used only in messages), which is followed by |data_bytes|. Throws ConfigError,
// with the file, the tensor and both values, for anything invalid: no JSON or values that the format does not define,
// duplicate names, an unknown type, sizes that overflow, offsets that point outside, overlap, leave gaps or do not
// match the shape.
Header parse_header(std::string_view json, uint64_t data_bytes, const std::string& file);

// Returns the length in the first 8 bytes of a file. Throws ConfigError if the file is shorter than that, or the length
// exceeds kMaxHeaderBytes.
uint64_t header_length(std::string_view begin_of_file, uint64_t file_bytes, const std::string& file);

// Returns the bytes of a tensor. Throws ConfigError if a size is negative or does not fit into 63 bits.
uint64_t tensor_bytes(const TensorShape& tensor, const std::string& file);

// "[2, 3]".
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace concord::safetensors
