// CUDA kernels of rotary embeddings and attention. See kernels.h.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "backends/cuda/torch/ops/kernels.h"

namespace concord::cuda::torch_side {

// Query, key and value heads, each [outer, inner, heads, dim] with strides and dense in its last dim, -> one packed
// array y [outer, inner, heads + 2 kv_heads, dim]. The first 2 * |half| elements of each query and key head are
// rotated, the others copied; cos and sin are [outer, inner, half] of Sum with strides. kv_heads may be 0.
struct HeadsFrom {
  const void* x;
  int64_t stride[3];
};
struct PackedRope {
  int64_t outer, inner, heads, kv_heads, dim, half;
  HeadsFrom q, k, v;
  int64_t angle_stride[2];
};
void rope_packed(Where where, const PackedRope& shape, const void* cos, const void* sin, bool back, void* y);

// Like rope_packed, but norms queries and keys first: y = x * rstd * weight, where |rstd| [outer, inner, heads +
// kv_heads] of Sum has one value per head. Only for heads that fit: whole vectors, held by 32 threads.
struct HeadNorms {
  const void *q, *k;  // weights [dim]
  double eps;
};
bool norm_rope_fits(const PackedRope& shape, Type type, const void* cos, const void* sin,
                    std::initializer_list<const void*> pointers);
void norm_rope(Where where, const PackedRope& shape, const HeadNorms& norms, const void* cos, const void* sin, void* y,
               void* rstd);
// |shape| holds the gradients of the outputs; |qkv| and |dqkv| are packed. |scratch| of Sum has norm_rope_lines(...)
// lines of |dim|.
int64_t norm_rope_lines(const PackedRope& shape, Type type);
void norm_rope_backward(Where where, const PackedRope& shape, const HeadNorms& norms, const void* cos, const void* sin,
                        const void* qkv, const void* rstd, void* dqkv, void* scratch, void* dq_weight, void* dk_weight);

// Attention of the one query of each row over its first lengths[row] keys, or over the last |window| of those; see
// core/ops/attention/cached_attention.h. Strides are of rows, tokens and heads. |sinks| [heads] of Sum, may be null;
// |out| is dense. |scratch| of Sum has cached_attention_scratch(...) numbers. Only for sizes that fit. The order of
// sums does not depend on |keys|, the capacity of the cache.
struct CachedHeads {
  int64_t rows, keys, heads, kv_heads, size, window;
  double scale, cap;
  HeadsFrom q, k, v;
};
bool cached_attention_fits(const CachedHeads& shape);
int64_t cached_attention_scratch(const CachedHeads& shape);
void cached_attention(Where where, const CachedHeads& shape, const int64_t* lengths, const void* sinks, void* scratch,
                      void* out);

}  // namespace concord::cuda::torch_side
