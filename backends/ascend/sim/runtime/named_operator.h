// Operators that are called by name through the graph engine (aclopCompileAndExecute), like some of torch_npu's. The
// runtime exports that function; it forwards the call to libopapi.so, which implements a few of them, if the process
// has loaded it.
#pragma once

#include <cstdint>

#include "backends/ascend/acl_abi.h"

namespace concord::ascend::sim {

// A tensor argument; owns nothing. |data| is a device address, or for small constants a host address, which is read
// during the call.
struct NamedTensor {
  abi::aclDataType dtype;  // undefined: an optional tensor that is missing
  const int64_t* sizes;
  int64_t dims;
  void* data;
};

struct NamedCall {
  const char* type;  // "ApplyAdamW"
  const NamedTensor* inputs;
  int64_t input_count;
  const NamedTensor* outputs;
  int64_t output_count;
  // Returns the attribute's value as text ("true", "0.5"), or null.
  const char* (*attribute)(const NamedCall* call, const char* name);
  const void* attributes;  // for |attribute|
  void* stream;
};

// Exported by libopapi.so. Returns a result code; kNotNamed for an unknown operator.
inline constexpr const char* kNamedOperatorEntry = "concord_sim_named_operator";
inline constexpr int32_t kNotNamed = -1;
using NamedOperator = int32_t(const NamedCall* call);

}  // namespace concord::ascend::sim
