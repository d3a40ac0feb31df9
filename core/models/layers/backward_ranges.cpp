#include "core/models/layers/backward_ranges.h"

#include <ATen/record_function.h>
#include <fmt/core.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <utility>
#include <vector>

namespace concord {
namespace {

using at::Tensor;
using torch::autograd::variable_list;

// A thread that runs backward.
struct Turn {
  std::unique_ptr<at::RecordFunction> open;
  int64_t next = -1;  // the layer whose range opens with the next node; -1: none
};
thread_local Turn turn;

struct LayerBoundary : torch::autograd::Function<LayerBoundary> {
  static variable_list forward(torch::autograd::AutogradContext* context, at::TensorList stream, int64_t layer) {
    context->saved_data["layer"] = layer;
    variable_list same;
    for (const Tensor& each : stream) same.push_back(each.detach());
    return same;
  }
  static variable_list backward(torch::autograd::AutogradContext* context, variable_list grads) {
    turn.next = context->saved_data["layer"].toInt();
    grads.emplace_back();  // none for |layer|
    return grads;
  }
};

bool is_profiled() { return at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE).has_value(); }

}  // namespace

Residual BackwardRanges::mark(const Residual& stream, int64_t number) {
  const bool differentiates = c10::GradMode::is_enabled() && stream.x_pbh.requires_grad();
  if (!differentiates || !is_profiled()) {
    has_end_ = false;
    return stream;
  }
  std::vector<Tensor> tensors{stream.x_pbh};
  if (stream.branch_pbh.defined()) tensors.push_back(stream.branch_pbh);
  const variable_list same = LayerBoundary::apply(at::TensorList(tensors), std::exchange(has_end_, true) ? number : -1);
  return {same[0], same.size() > 1 ? same[1] : Tensor()};
}

void turn_backward_range(std::string_view name) {
  if (name.find("LayerBoundary") != std::string_view::npos) turn.open.reset();
  const int64_t layer = std::exchange(turn.next, -1);
  if (layer < 0) return;
  turn.open = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  turn.open->before(fmt::format("layers.{} backward", layer));
}

}  // namespace concord
