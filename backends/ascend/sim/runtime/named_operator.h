// Operators that are called by name through the graph engine (aclopCompileAndExecute), as torch_npu still does for
// some. The runtime takes the call; the few that are simulated are in libopapi.so, which it asks where the process has
// it.
#pragma once

#include <cstdint>

#include "backends/ascend/acl_abi.h"

namespace concord::ascend::sim {

// Owns nothing. |data| is a device address, or a host address for small constants, whose value counts at the call.
struct NamedTensor {
  abi::aclDataType dtype;  // undefined: an optional tensor that was not given
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
  // The attribute's value as text ("true", "0.5"), or null.
  const char* (*attribute)(const NamedCall* call, const char* name);
  const void* attributes;  // for |attribute|
  void* stream;
};

// Exported by libopapi.so. A result code; kNotNamed if it has no such operator.
inline constexpr const char* kNamedOperatorEntry = "concord_sim_named_operator";
inline constexpr int32_t kNotNamed = -1;
using NamedOperator = int32_t(const NamedCall* call);

}  // namespace concord::ascend::sim
