// concord::norm_rope_qkv: what Qwen3 does to the heads of a projection, in one pass: an RMS norm over each query and
// key head (core/ops/norm/rms_norm.h), then rope (core/ops/attention/rope.h). Without it a norm would need dense copies
// of queries and keys, and their gradients a concatenation.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/ops/attention/rope.h"

namespace concord {

// The factors of the norms: [n] each, of the heads' type.
struct HeadNorms {
  at::Tensor q, k;
  double eps;
};
// |qkv|, |cos|, |sin| and the result as for rope_qkv. On the host the same bits as from the two operators; a device has
// one kernel for each way, which rounds once. Throws ConfigError, with the sizes, if they do not fit.
Heads norm_rope_qkv(const at::Tensor& qkv, const HeadNorms& norms, const at::Tensor& cos, const at::Tensor& sin,
                    int64_t heads, int64_t kv_heads);

}  // namespace concord
