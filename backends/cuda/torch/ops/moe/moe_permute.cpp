// concord::moe_order, moe_permute, moe_combine and their derivatives on CUDA. Nothing waits for the device.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <optional>
#include <tuple>

#include "backends/cuda/torch/ops/moe/moe_kernels.h"
#include "backends/cuda/torch/ops/tensors.h"

namespace concord::cuda::torch_side {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

std::tuple<Tensor, Tensor, Tensor> order_on_device(const Tensor& experts, int64_t count) {
  const Tensor chosen = experts.contiguous();
  const int64_t rows = chosen.numel();
  if (!moe_order_fits(rows, count)) {
    const auto made = reference("concord::moe_order", {experts, count});
    return {made[0].toTensor(), made[1].toTensor(), made[2].toTensor()};
  }
  const OnDevice device(chosen.device());
  const Tensor order = at::empty({rows}, chosen.options()), inverse = at::empty({rows}, chosen.options());
  const Tensor ends = at::empty({count}, chosen.options());
  const Tensor scratch = at::empty({moe_order_scratch(rows, count)}, chosen.options().dtype(at::kInt));
  moe_order(where(chosen).stream, rows, count, chosen.const_data_ptr<int64_t>(), scratch.mutable_data_ptr<int>(),
            order.mutable_data_ptr<int64_t>(), inverse.mutable_data_ptr<int64_t>(), ends.mutable_data_ptr<int64_t>());
  return {order, inverse, ends};
}

Tensor permute_on_device(const Tensor& x, const Tensor&, const Tensor& inverse) {
  const OnDevice device(x.device());
  const Tensor from = x.contiguous(), places = inverse.contiguous();
  const Tensor y = at::empty({places.size(0), from.size(1)}, from.options());
  const int64_t tokens = from.size(0), k = tokens == 0 ? 0 : places.size(0) / tokens;
  moe_permute(where(from), {tokens, k, from.size(1)}, from.const_data_ptr(), places.const_data_ptr<int64_t>(),
              y.mutable_data_ptr());
  return y;
}

Tensor combine_on_device(const Tensor& rows, const MaybeTensor& weights, const Tensor&, const Tensor& inverse,
                         int64_t k) {
  const OnDevice device(rows.device());
  const Tensor from = rows.contiguous(), places = inverse.contiguous();
  const Tensor factors = weights ? weights->to(sums_of(from)).contiguous() : Tensor();
  const int64_t tokens = from.size(0) / k;
  const Tensor y = at::empty({tokens, from.size(1)}, from.options());
  moe_combine(where(from), {tokens, k, from.size(1)}, from.const_data_ptr(),
              weights ? factors.const_data_ptr() : nullptr, places.const_data_ptr<int64_t>(), y.mutable_data_ptr());
  return y;
}

std::tuple<Tensor, Tensor> combine_backward_on_device(const Tensor& grad, const Tensor& rows, const Tensor& weights,
                                                      const Tensor&, const Tensor& inverse) {
  const OnDevice device(rows.device());
  const Tensor back = grad.contiguous(), from = rows.contiguous(), places = inverse.contiguous();
  const Tensor factors = weights.to(sums_of(from)).contiguous();
  const Tensor drows = at::empty_like(from), dweights = at::empty(weights.sizes(), factors.options());
  moe_combine_backward(where(from), {weights.size(0), weights.size(1), from.size(1)}, back.const_data_ptr(),
                       from.const_data_ptr(), factors.const_data_ptr(), places.const_data_ptr<int64_t>(),
                       drows.mutable_data_ptr(), dweights.mutable_data_ptr());
  return {drows, dweights.to(weights.scalar_type())};
}

TORCH_LIBRARY_IMPL(concord, CUDA, m) {
  m.impl("moe_order", order_on_device);
  m.impl("moe_permute", permute_on_device);
  m.impl("moe_combine", combine_on_device);
  m.impl("moe_combine_backward", combine_backward_on_device);
}

}  // namespace
}  // namespace concord::cuda::torch_side
