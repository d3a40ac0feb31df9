// concord::cached_attention: what the newest token of each row sees of the keys and values kept so far. The step of
// generation after the first; the first, in which all tokens of a prompt are new, is concord::attention. Rows have as
// many keys as they have: the lengths are on the device, so that a step need not wait for it. Has no derivative.
#pragma once

#include "core/ops/attention/attention.h"

namespace concord {

// |q| [B, 1, heads, n]; |k|, |v| [B, T, kv_heads, n] in any strides whose last is 1; |lengths| int64 [B], on the same
// device: row b sees its first lengths[b] keys, the new token's among them, or the last options.window of those. What
// is behind them is never read as a number: it may be NaN. 1 <= lengths[b] <= T is for the caller to see to. Returns
// [B, 1, heads, n]. Throws ConfigError, with the sizes, if they do not fit.
at::Tensor cached_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& lengths,
                            const AttentionOptions& options = {});

}  // namespace concord
