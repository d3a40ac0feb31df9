// How gradients reach the main gradients on Ascend, which has no operator that copies lists of different types, and
// none that overwrites fp32 with a product of 16-bit operands.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "backends/ascend/torch/ops/dispatcher.h"
#include "backends/ascend/torch/ops/neighbours.h"

namespace concord::ascend::torch_side {
namespace {

using at::Tensor;
using at::TensorList;

bool is_flat_copy(const Tensor& to, const Tensor& from) {
  return to.is_contiguous() && to.scalar_type() != from.scalar_type() && to.numel() > 0 && to.sizes() == from.sizes();
}

// Gradients whose destinations are neighbours are concatenated and copied together.
void copy_grads_(TensorList main, TensorList grads) {
  bool flat = true;
  for (size_t i = 0; i < main.size(); ++i) flat = flat && is_flat_copy(main[i], grads[i]);
  if (!flat) {
    reference("concord::copy_grads_", {main.vec(), grads.vec()});
    return;
  }
  std::vector<size_t> order(main.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return main[i].storage_offset(); });
  for (size_t begin = 0; begin < order.size();) {
    Tensor to = main[order[begin]].flatten();
    std::vector<Tensor> from{grads[order[begin]].flatten()};
    for (++begin; begin < order.size() && follows(to, main[order[begin]]); ++begin) {
      to = joined(to, main[order[begin]]);
      from.push_back(grads[order[begin]].flatten());
    }
    to.copy_(from.size() == 1 ? from.front() : at::cat(from));
  }
}

// Weight gradients are added to zeros (linear.cpp), so one fill for many of them does.
bool prefers_cleared_grads(const Tensor& weight) {
  static const bool adds = find("npu_grouped_matmul_add_").has_value();
  return adds && (weight.scalar_type() == at::kHalf || weight.scalar_type() == at::kBFloat16);
}

TORCH_LIBRARY_IMPL(concord, PrivateUse1, m) {
  m.impl("copy_grads_", copy_grads_);
  m.impl("prefers_cleared_grads", prefers_cleared_grads);
}

}  // namespace
}  // namespace concord::ascend::torch_side
