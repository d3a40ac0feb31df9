// concord::rope: rotary position embedding (Su et al., "RoFormer", 2021), pairs (i, i + n/2) as Hugging Face has them.
// Turning back is the derivative of turning. Computed in fp32 (fp64 for Double), rounded once.
// core/ops/attention/rope_angles.h makes the angles.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace concord {

// |x| [..., heads, n]; |cos|, |sin| [..., r] broadcast over the leading dimensions of x ([S, r] or [B, S, r] for [B, S,
// heads, n], [S, 1, r] for [S, B, heads, n], [T, r] for packed [T, heads, n]), fp32, or fp64 for Double. 2 r <= n; what
// is beyond 2 r stays unchanged. Throws ConfigError, with the sizes, if they do not fit.
at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

// As rope, for pairs that are neighbours: the first ones move to the first half. Queries and keys that are both turned
// so have the same products.
at::Tensor rope_interleaved(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

// The heads of queries, keys and values, [..., heads or kv_heads, n].
struct Heads {
  at::Tensor q, k, v;
};
// |qkv| [..., (heads + 2 kv_heads) n] as the projection made it -> queries and keys turned, values as they are; the
// gradient comes back packed. A device has one kernel for each way; there the three share memory.
Heads rope_qkv(const at::Tensor& qkv, const at::Tensor& cos, const at::Tensor& sin, int64_t heads, int64_t kv_heads);
// What it demands of its arguments, for other operators on packed heads. Throws ConfigError, with |op| and the sizes.
void check_rope_qkv(const char* op, const at::Tensor& qkv, const at::Tensor& cos, const at::Tensor& sin, int64_t heads,
                    int64_t kv_heads);

}  // namespace concord
