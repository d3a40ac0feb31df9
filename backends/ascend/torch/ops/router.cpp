// The router of experts on Ascend, composed of fewer operators than the reference: if the chosen probabilities are
// divided by their sum, that of all experts cancels, and a softmax over the chosen ones is left. torch_npu's gating
// operators are not used, because they choose by rounded probabilities, in an order of ties that is not documented;
// Concord's choice is by logits, with ties by index.
#include <ATen/core/Tensor.h>

#include <tuple>

#include "backends/ascend/torch/ops/dispatcher.h"

namespace concord::ascend::torch_side {
namespace {

using at::Tensor;

std::tuple<Tensor, Tensor> moe_route(const Tensor& logits, int64_t top_k, bool pre_softmax, bool normalise,
                                     double scale) {
  const Stack made = reference("concord::moe_route", {logits, top_k, pre_softmax && !normalise, false, scale});
  return {made.at(0).toTensor(), made.at(1).toTensor()};
}

Tensor moe_route_backward(const Tensor& grad, const Tensor& logits, const Tensor& experts, bool pre_softmax,
                          bool normalise, double scale) {
  return reference("concord::moe_route_backward", {grad, logits, experts, pre_softmax && !normalise, false, scale})
      .at(0)
      .toTensor();
}

TORCH_LIBRARY_IMPL(concord, PrivateUse1, m) {
  m.impl("moe_route", moe_route);
  m.impl("moe_route_backward", moe_route_backward);
}

}  // namespace
}  // namespace concord::ascend::torch_side
