// concord::cached_attention on CUDA.
#include <ATen/ops/empty.h>

#include <optional>

#include "backends/cuda/torch/ops/attention/attention_kernels.h"
#include "backends/cuda/torch/ops/choices.h"
#include "backends/cuda/torch/ops/tensors.h"

namespace concord::cuda::torch_side {
namespace {

using at::Tensor;

const Choice kWideHeads("cached_attention: the reference, for heads beyond a warp's registers", kAllTypes);

Tensor dense_heads(const Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); }

HeadsFrom cached_heads(const Tensor& x) { return {x.const_data_ptr(), {x.stride(0), x.stride(1), x.stride(2)}}; }

Tensor cached(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths, int64_t window, double scale,
              double cap, const std::optional<Tensor>& sinks) {
  const OnDevice device(q.device());
  const Tensor queries = dense_heads(q), keys = dense_heads(k), values = dense_heads(v), ends = lengths.contiguous();
  const CachedHeads shape{q.size(0),
                          k.size(1),
                          q.size(2),
                          k.size(2),
                          q.size(3),
                          window,
                          scale,
                          cap,
                          cached_heads(queries),
                          cached_heads(keys),
                          cached_heads(values)};
  if (!cached_attention_fits(shape)) {
    kWideHeads.take(type_of(q));
    return reference("concord::cached_attention", {q, k, v, lengths, window, scale, cap, sinks}).at(0).toTensor();
  }
  const Tensor out = at::empty(q.sizes(), q.options());
  if (out.numel() == 0) return out;
  const Tensor scratch = at::empty({cached_attention_scratch(shape)}, sums_of(q));
  const Tensor added = sinks ? sinks->to(scratch.scalar_type()).contiguous() : Tensor();
  cached_attention(where(q), shape, ends.const_data_ptr<int64_t>(), sinks ? added.const_data_ptr() : nullptr,
                   scratch.mutable_data_ptr(), out.mutable_data_ptr());
  return out;
}

TORCH_LIBRARY_IMPL(concord, CUDA, m) { m.impl("cached_attention", cached); }

}  // namespace
}  // namespace concord::cuda::torch_side
