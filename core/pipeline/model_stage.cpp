#include "core/pipeline/model_stage.h"

#include <c10/util/accumulate.h>
#include <fmt/core.h>

#include "core/base/config_error.h"
#include "core/pipeline/passed_counts.h"

namespace concord {
namespace {

std::vector<double> one_for_each(std::span<const double> weights, size_t batches) {
  if (weights.empty()) return std::vector<double>(batches, 1);
  if (weights.size() != batches) {
    throw ConfigError(fmt::format("{} weights for {} micro-batches; give one for each", weights.size(), batches));
  }
  return {weights.begin(), weights.end()};
}

}  // namespace

void ModelStage::begin(std::span<const MicroBatch> batches, std::span<const double> weights,
                       std::span<const double> router_weights) {
  chunk_.forget_fp8_weights();
  batches_ = batches;
  weights_ = one_for_each(weights, batches.size());
  router_weights_ = one_for_each(router_weights, batches.size());
  results_.router_records.assign(batches.size(), nullptr);
  results_.token_statistics.assign(is_last() ? batches.size() : 0, {});
  results_.further_losses.reset();
  chunk_.begin_step();
  results_.token_losses.assign(is_last() ? batches.size() : 0, at::Tensor());
}

ValueSpec ModelStage::input_spec(int microbatch) {
  const std::vector<int64_t> shape = chunk_.hidden_shape(batch(microbatch));
  if (!chunk_.passes_expert_counts()) return {shape, chunk_.hidden_dtype()};
  return {{PassedCounts::size(c10::multiply_integers(shape), chunk_.experts())}, chunk_.hidden_dtype()};
}

at::Tensor ModelStage::run_chunk(size_t index, const at::Tensor& hidden) {
  chunk_.weigh_router_losses(router_weights_[index]);
  // A forward step of the user's may weigh tokens.
  if (!loss_step_) chunk_.expect_loss_grad({.value = weights_[index], .is_certain = !forward_step_});
  const MicroBatch& own = batches_[index];
  const at::Tensor output = forward_step_ ? forward_step_(chunk_, hidden, own) : chunk_.forward(hidden, own);
  results_.router_records[index] = chunk_.take_router_record();
  return output;
}

at::Tensor ModelStage::forward(int microbatch, const at::Tensor& input) {
  const auto index = static_cast<size_t>(microbatch);
  at::Tensor output;
  if (chunk_.passes_expert_counts()) {
    PassedCounts counts(chunk_.experts());
    const at::Tensor hidden =
        input.defined() ? counts.received(input, chunk_.hidden_shape(batch(microbatch))) : at::Tensor();
    output = run_chunk(index, hidden);
    counts.add(results_.router_records[index], is_last());
    if (!is_last()) return counts.sent(output);
  } else {
    output = run_chunk(index, input);
    if (!is_last()) return output;
  }
  if (auto measured = chunk_.take_token_statistics()) results_.token_statistics[index] = std::move(*measured);
  if (const at::Tensor further = chunk_.take_mtp_losses(); further.defined()) {
    results_.further_losses = results_.further_losses.defined() ? results_.further_losses.add(further) : further;
  }
  const StageLoss loss = loss_step_ ? loss_step_(output, microbatch) : StageLoss{output, output.detach()};
  results_.token_losses[index] = loss.logged;
  return loss.differentiated.sum().mul(weights_[index]);
}

void ModelStage::defer_weight_grads(DeferredWgrads* later) {
  for (Parameter& parameter : chunk_.parameters()) parameter.sink.deferred = later;
}

double ModelStage::loss_sum() const {
  double sum = 0;
  for (const at::Tensor& losses : results_.token_losses) sum += losses.to(at::kDouble).sum().item<double>();
  return sum;
}

int64_t ModelStage::counted_tokens() const {
  int64_t counted = 0;
  for (const MicroBatch& each : batches_) counted += chunk_.counted_tokens(each);
  return counted;
}

}  // namespace concord
