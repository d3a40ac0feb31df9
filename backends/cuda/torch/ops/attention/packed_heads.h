// Converts the heads of queries, keys and values to arguments of the rope kernels. Only for the .cpp files in this
// folder.
#pragma once

#include <tuple>

#include "backends/cuda/torch/ops/attention/attention_kernels.h"
#include "backends/cuda/torch/ops/tensors.h"

namespace concord::cuda::torch_side {

using HeadTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;  // q, k, v

// Returns views of |packed| [..., (heads + 2 kv_heads) n].
inline HeadTensors cut_heads(const at::Tensor& packed, int64_t heads, int64_t kv_heads) {
  const at::Tensor all = packed.unflatten(-1, {heads + 2 * kv_heads, -1});
  return {all.narrow(-2, 0, heads), all.narrow(-2, heads, kv_heads), all.narrow(-2, heads + kv_heads, kv_heads)};
}

// Returns |x| [..., heads, n] as [outer, inner, heads, n], dense in its last dim: the last dim before the heads is
// inner, and the dims before it are merged into outer.
inline at::Tensor four_dims(const at::Tensor& x) {
  const int64_t inner = x.dim() > 2 ? x.size(-3) : 1;
  const at::Tensor dense = x.stride(-1) == 1 ? x : x.contiguous();
  return dense.reshape({x.numel() == 0 ? 0 : -1, inner, x.size(-2), x.size(-1)});
}

inline at::Tensor angles_for(const at::Tensor& angles, const at::Tensor& x) {
  auto sizes = x.sizes().slice(0, static_cast<size_t>(x.dim() - 2)).vec();
  const int64_t inner = sizes.empty() ? 1 : sizes.back();
  sizes.push_back(angles.size(-1));
  return angles.contiguous().expand(sizes).reshape({-1, inner, angles.size(-1)});
}

// The shape for the kernels, and the tensors that own its memory.
struct PackedHeads {
  at::Tensor q, k, v, cos, sin;

  PackedHeads(const HeadTensors& heads, const at::Tensor& all_cos, const at::Tensor& all_sin)
      : q(four_dims(std::get<0>(heads))),
        k(four_dims(std::get<1>(heads))),
        v(four_dims(std::get<2>(heads))),
        cos(angles_for(all_cos, std::get<0>(heads))),
        sin(angles_for(all_sin, std::get<0>(heads))) {}

  PackedRope shape() const {
    const auto from = [](const at::Tensor& x) {
      return HeadsFrom{x.const_data_ptr(), {x.stride(0), x.stride(1), x.stride(2)}};
    };
    return {q.size(0),    q.size(1), q.size(2), k.size(2), q.size(3),
            cos.size(-1), from(q),   from(k),   from(v),   {cos.stride(0), cos.stride(1)}};
  }
};

// Returns the sizes of the packed tensor of |heads|: [..., (heads + 2 kv_heads) n].
inline std::vector<int64_t> packed_sizes(const HeadTensors& heads) {
  const auto& [q, k, v] = heads;
  auto sizes = q.sizes().slice(0, static_cast<size_t>(q.dim() - 2)).vec();
  sizes.push_back((q.size(-2) + 2 * k.size(-2)) * q.size(-1));
  return sizes;
}

}  // namespace concord::cuda::torch_side
