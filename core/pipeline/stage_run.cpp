#include "core/pipeline/stage_run.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>
#include <fmt/core.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "platform/loader/error.h"

namespace concord {
namespace {

[[noreturn]] void refuse(const std::string& why) { throw Error(CONCORD_STATUS_FAILED_PRECONDITION, why); }

// Gradients of leaves are accumulated in their .grad.
void differentiate(const torch::autograd::Edge& output, const at::Tensor& grad) {
  torch::autograd::Engine::get_default_engine().execute({output}, {grad}, /*keep_graph=*/false, /*create_graph=*/false,
                                                        /*accumulate_grad=*/true);
}

}  // namespace

StageRun::Saved::Saved() = default;
StageRun::Saved::Saved(Saved&&) noexcept = default;
StageRun::Saved& StageRun::Saved::operator=(Saved&&) noexcept = default;
StageRun::Saved::~Saved() = default;

StageRun::StageRun(Stage& stage, const Options& options)
    : stage_(stage), options_(options), saved_(static_cast<size_t>(options.microbatches)) {}

StageRun::~StageRun() = default;

void StageRun::begin() {
  if (options_.differentiates) stage_.defer_weight_grads(options_.later);
}

void StageRun::end() {
  if (options_.later != nullptr) stage_.defer_weight_grads(nullptr);
}

void StageRun::keep(Saved& saved, const at::Tensor& output) const {
  if (options_.last) {
    if (output.numel() != 1) {
      refuse(fmt::format("the last stage returned {} values; it must return one, the loss", output.numel()));
    }
    saved.one = at::ones_like(output);
  }
  if (!output.requires_grad()) return;
  saved.graph = std::make_unique<torch::autograd::Edge>(torch::autograd::impl::gradient_edge(output));
}

at::Tensor StageRun::forward(int microbatch, at::Tensor input) {
  const at::AutoGradMode mode(options_.differentiates);
  if (options_.differentiates && input.defined()) input.requires_grad_(true);
  const at::Tensor output = stage_.forward(microbatch, input);
  if (!output.defined()) refuse("the stage returned an undefined tensor");
  if (options_.differentiates) {
    Saved& kept = saved(microbatch);
    kept.input = std::move(input);
    kept.output = {output.sizes().vec(), output.scalar_type()};
    keep(kept, output);
  }
  return options_.last ? at::Tensor() : output.detach();
}

at::Tensor StageRun::input_grad(int microbatch, at::Tensor grad) {
  Saved& kept = saved(microbatch);
  if (options_.last) grad = std::move(kept.one);
  if (kept.graph != nullptr) {
    const auto graph = std::move(kept.graph);
    differentiate(*graph, grad);
  }
  if (options_.later != nullptr) kept.halves = std::exchange(*options_.later, {});
  const at::Tensor input = std::move(kept.input);
  if (options_.first) return {};
  if (!input.grad().defined()) {
    refuse("backward produced no gradient for the stage's input: its output does not depend on it");
  }
  return std::exchange(input.mutable_grad(), at::Tensor());
}

void StageRun::weight_grad(int microbatch) { saved(microbatch).halves.run_all(); }

}  // namespace concord
