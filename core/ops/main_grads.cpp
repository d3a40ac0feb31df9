#include "core/ops/main_grads.h"

#include <ATen/ops/_foreach_copy.h>
#include <fmt/core.h>

#include "core/ops/check.h"
#include "core/ops/dispatch.h"

namespace concord {
namespace ops::main_grads_op {
namespace {

void reference_copy(at::TensorList main, at::TensorList grads) {
  if (!main.empty()) at::_foreach_copy_(main, grads);
}

bool reference_preference(const at::Tensor&) { return false; }

TORCH_LIBRARY_FRAGMENT(concord, m) {
  m.def("copy_grads_(Tensor(a!)[] main, Tensor[] grads) -> ()");
  m.def("prefers_cleared_grads(Tensor weight) -> bool");
}
TORCH_LIBRARY_IMPL(concord, CompositeExplicitAutograd, m) {
  m.impl("copy_grads_", reference_copy);
  m.impl("prefers_cleared_grads", reference_preference);
}

}  // namespace
}  // namespace ops::main_grads_op

void copy_grads_(at::TensorList main, at::TensorList grads) {
  static const auto op = ops::find<void(at::TensorList, at::TensorList)>("concord::copy_grads_");
  if (main.size() != grads.size()) {
    ops::refuse("copy_grads_", fmt::format("{} gradients cannot be copied to {}", grads.size(), main.size()));
  }
  op.call(main, grads);
}

bool prefers_cleared_grads(const at::Tensor& weight) {
  static const auto op = ops::find<bool(const at::Tensor&)>("concord::prefers_cleared_grads");
  return op.call(weight);
}

}  // namespace concord
