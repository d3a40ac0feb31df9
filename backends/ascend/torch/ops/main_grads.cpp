// How gradients reach the main gradients on Ascend, which has no operator that copies lists of different types.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <vector>

#include "backends/ascend/torch/ops/dispatcher.h"

namespace concord::ascend::torch_side {
namespace {

using at::Tensor;
using at::TensorList;

// Longer gradients are converted one by one: a list would read and write them once more.
constexpr int64_t kMaxListed = 1 << 16;

// Returns |grads|, concatenated and converted together, as parts of one tensor.
std::vector<Tensor> converted(const std::vector<Tensor>& grads, at::ScalarType type) {
  std::vector<Tensor> flat, parts;
  for (const Tensor& each : grads) flat.push_back(each.flatten());
  Tensor rest = (flat.size() == 1 ? flat.front() : at::cat(flat)).to(type);
  for (const Tensor& each : grads) {
    parts.push_back(rest.narrow(0, 0, each.numel()).view(each.sizes()));
    rest = rest.narrow(0, each.numel(), rest.numel() - each.numel());
  }
  return parts;
}

// Gradients of the destinations' type, and short ones of another, are copied by one operator.
void copy_grads_(TensorList main, TensorList grads) {
  if (main.empty()) return;
  const at::ScalarType type = main[0].scalar_type();
  std::vector<Tensor> to, from, narrow_to, narrow;
  for (size_t i = 0; i < main.size(); ++i) {
    if (main[i].scalar_type() != type || (grads[i].scalar_type() != type && grads[i].numel() > kMaxListed)) {
      Tensor(main[i]).copy_(grads[i]);
    } else if (grads[i].scalar_type() == type) {
      to.push_back(main[i]);
      from.push_back(grads[i]);
    } else {
      narrow_to.push_back(main[i]);
      narrow.push_back(grads[i]);
    }
  }
  if (narrow.size() == 1 && to.empty()) {
    narrow_to.front().copy_(narrow.front());
  } else if (!narrow.empty()) {
    const std::vector<Tensor> wide = converted(narrow, type);
    to.insert(to.end(), narrow_to.begin(), narrow_to.end());
    from.insert(from.end(), wide.begin(), wide.end());
  }
  if (!to.empty()) at::_foreach_copy_(to, from);
}

TORCH_LIBRARY_IMPL(concord, PrivateUse1, m) { m.impl("copy_grads_", copy_grads_); }

}  // namespace
}  // namespace concord::ascend::torch_side
