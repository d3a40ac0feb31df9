// concord::rope: rotary position embedding (Su et al., "RoFormer", 2021), with pairs (i, i + n/2) as in Hugging Face.
// The derivative is the inverse rotation. Computed in fp32 (fp64 for Double), rounded once.
// core/ops/attention/rope_angles.h computes the angles.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace concord {

// |x| [..., heads, n]; |cos|, |sin| [..., r] broadcast over the leading dimensions of x ([S, r] or [B, S, r] for [B, S,
// heads, n], [S, 1, r] for [S, B, heads, n], [T, r] for packed [T, heads, n]), fp32, or fp64 for Double. 2 r <= n;
// elements beyond 2 r are unchanged. Throws ConfigError, with the sizes, if they do not match.
at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

// Like rope(), for interleaved pairs (2i, 2i + 1), which are moved to (i, i + n/2). The products of queries and keys
// are the same if both are rotated in this way.
at::Tensor rope_interleaved(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

// The heads of queries, keys and values, [..., heads or kv_heads, n].
struct Heads {
  at::Tensor q, k, v;
};
// Rotates queries and keys of |qkv| [..., (heads + 2 kv_heads) n], the output of a fused projection; values are
// unchanged. The gradient is packed like |qkv|. A device has one kernel each for forward and backward; there the three
// results share memory.
Heads rope_qkv(const at::Tensor& qkv, const at::Tensor& cos, const at::Tensor& sin, int64_t heads, int64_t kv_heads);
// Checks the arguments of rope_qkv(), also for other operators on packed heads. Throws ConfigError, with |op| and the
// sizes.
void check_rope_qkv(const char* op, const at::Tensor& qkv, const at::Tensor& cos, const at::Tensor& sin, int64_t heads,
                    int64_t kv_heads);

}  // namespace concord
