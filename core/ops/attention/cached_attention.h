// concord::cached_attention: attention of the latest token of each row over its KV cache. Used for decoding after the
// prefill, which is concord::attention since all tokens of a prompt are new. Rows differ in their number of keys; the
// lengths are on the device, so that a step need not wait for it. Not differentiable.
#pragma once

#include "core/ops/attention/attention.h"

namespace concord {

// |q| [B, 1, heads, n]; |k|, |v| [B, T, kv_heads, n] with any strides whose last is 1; |lengths| int64 [B], on the same
// device: row b sees its first lengths[b] keys, including the new token's, or the last options.window of those. Later
// entries are never used and may be NaN. The caller must ensure 1 <= lengths[b] <= T. Returns [B, 1, heads, n]. Throws
// ConfigError, with the sizes, if they do not match.
at::Tensor cached_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& lengths,
                            const AttentionOptions& options = {});

}  // namespace concord
