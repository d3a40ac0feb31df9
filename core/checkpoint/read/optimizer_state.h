// The state of an optimizer, independent of the layout that computed it: every value has a global address, the name of
// its tensor and the index there (core/parallel/shard_spec.h). Checkpoints store it, and any other layout can load it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/parallel/parameter.h"
#include "core/parallel/shard_spec.h"

namespace concord {

struct OptimizerState {
  struct Entry {
    // "exp_avg", "exp_avg_sq", "momentum", "momentum_buffer", "main" (fp32 weights) or "ema"; the scales of codes
    // have kScaleKey appended (core/base/code_map.h), remainders of main weights kRemainderKey.
    std::string key;
    std::vector<ShardRun> runs;  // tensor, global indices; |local| is relative to |values|
    at::Tensor values;           // flat; in Optimizer::state() fp32 on the host
  };
  int64_t steps = 0;
  std::vector<Entry> entries;
};

// Follows the key "main" in that of the remainders of main weights, which are then saved in bf16: int16
// (core/torch/remainder.h), or bf16 compensations to be added.
inline constexpr std::string_view kRemainderKey = ".remainder";

// A tensor of the state of a stage, over all ranks.
struct StateTensor {
  std::string key;
  const Parameter* parameter;
  c10::ScalarType type;    // in which it is kept and saved; kByte, fp8 and fp16: codes, whose scales are another tensor
  bool is_scales = false;  // one element per block of the parameter's tensors
};

// A source of optimizer state by global address: the states of other ranks (StateIndex), or the files of a checkpoint.
class StateSource {
 public:
  virtual ~StateSource() = default;
  virtual int64_t steps() const = 0;
  // Fills |values| (flat, fp32, on the host) with the values of |key| at |runs|; other elements are unchanged. Throws
  // ConfigError with the tensor if values are missing. If |values| are uint8, fp8 or fp16 they become the codes.
  virtual void read(const std::string& key, const std::vector<ShardRun>& runs, const at::Tensor& values) const = 0;
  // Whether it has codes of |type| (uint8, fp8 or fp16) of |key| for |tensor|, and their scales.
  virtual bool has_codes(const std::string& /*key*/, const std::string& /*tensor*/, c10::ScalarType /*type*/) const {
    return false;
  }
};

}  // namespace concord
