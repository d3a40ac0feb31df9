// concord::norm_rope_qkv: Qwen3's RMS norm of each query and key head (core/ops/norm/rms_norm.h) followed by rope
// (core/ops/attention/rope.h), in one pass. Without it the norm would need dense copies of queries and keys, and their
// gradients a concatenation.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/ops/attention/rope.h"

namespace concord {

// The weights of the norms: [n] each, in the type of the heads.
struct HeadNorms {
  at::Tensor q, k;
  double eps;
};
// |qkv|, |cos|, |sin| and the result as for rope_qkv. On the host bitwise identical to the two operators; a device has
// one kernel each for forward and backward, which rounds once. Throws ConfigError, with the sizes, if they do not
// match.
Heads norm_rope_qkv(const at::Tensor& qkv, const HeadNorms& norms, const at::Tensor& cos, const at::Tensor& sin,
                    int64_t heads, int64_t kv_heads);

}  // namespace concord
