// concord::moe_route and its derivative on CUDA.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <tuple>

#include "backends/cuda/torch/ops/choices.h"
#include "backends/cuda/torch/ops/moe/moe_kernels.h"
#include "backends/cuda/torch/ops/tensors.h"

namespace concord::cuda::torch_side {
namespace {

using at::Tensor;

const Choice kRouteReference("moe_route: the reference, for more experts or choices", kAllTypes);
const Choice kRouteBackReference("moe_route_backward: the reference, for more experts or choices", kAllTypes);

RoutedTokens routed(const Tensor& logits, int64_t k, bool pre_softmax, bool normalise, double scale) {
  return {rows_of(logits).rows, logits.size(-1), k, /*over_chosen=*/normalise || !pre_softmax, scale};
}

std::tuple<Tensor, Tensor> route_on_device(const Tensor& logits, int64_t top_k, bool pre_softmax, bool normalise,
                                           double scale) {
  const OnDevice device(logits.device());
  const RoutedTokens shape = routed(logits, top_k, pre_softmax, normalise, scale);
  if (!moe_route_fits(shape)) {
    kRouteReference.take(type_of(logits));
    const auto made = reference("concord::moe_route", {logits, top_k, pre_softmax, normalise, scale});
    return {made.at(0).toTensor(), made.at(1).toTensor()};
  }
  auto sizes = logits.sizes().vec();
  sizes.back() = top_k;
  const Tensor dense = logits.contiguous(), weights = at::empty(sizes, sums_of(logits));
  const Tensor experts = at::empty(sizes, logits.options().dtype(at::kLong));
  moe_route(where(dense), shape, dense.const_data_ptr(), weights.mutable_data_ptr(),
            experts.mutable_data_ptr<int64_t>());
  return {weights, experts};
}

Tensor route_back_on_device(const Tensor& grad, const Tensor& logits, const Tensor& experts, bool pre_softmax,
                            bool normalise, double scale) {
  const OnDevice device(logits.device());
  const RoutedTokens shape = routed(logits, experts.size(-1), pre_softmax, normalise, scale);
  if (!moe_route_fits(shape)) {
    kRouteBackReference.take(type_of(logits));
    const auto made = reference("concord::moe_route_backward", {grad, logits, experts, pre_softmax, normalise, scale});
    return made.at(0).toTensor();
  }
  const Tensor g = grad.contiguous(), dense = logits.contiguous(), chosen = experts.contiguous();
  const Tensor result = at::empty_like(dense);
  moe_route_backward(where(dense), shape, g.const_data_ptr(), dense.const_data_ptr(), chosen.const_data_ptr<int64_t>(),
                     result.mutable_data_ptr());
  return result;
}

TORCH_LIBRARY_IMPL(concord, CUDA, m) {
  m.impl("moe_route", route_on_device);
  m.impl("moe_route_backward", route_back_on_device);
}

}  // namespace
}  // namespace concord::cuda::torch_side
