#include "core/pipeline/model_stage.h"

#include <c10/util/accumulate.h>
#include <fmt/core.h>

#include "core/base/config_error.h"
#include "core/models/layers/router_record.h"
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
                       std::span<const double> router_weights, const PassOptions& pass) {
  chunk_.forget_fp8_weights();
  batches_ = batches;
  weights_ = one_for_each(weights, batches.size());
  router_weights_ = one_for_each(router_weights, batches.size());
  results_.router_records.assign(batches.size(), nullptr);
  results_.token_statistics.assign(is_last() ? batches.size() : 0, {});
  results_.mtp_losses.reset();
  pass_ = pass;
  pass_.step_counts = std::make_shared<CountsOfStep>();
  results_.token_losses.assign(is_last() ? batches.size() : 0, at::Tensor());
}

ValueSpec ModelStage::input_spec(int microbatch) {
  const std::vector<int64_t> shape = chunk_.hidden_shape(batch(microbatch));
  if (!chunk_.passes_expert_counts()) return {shape, chunk_.hidden_dtype()};
  return {{PassedCounts::size(c10::multiply_integers(shape), chunk_.experts())}, chunk_.hidden_dtype()};
}

PassOutput ModelStage::run_chunk(size_t index, const at::Tensor& hidden) {
  PassOptions options = pass_;
  options.router_loss_weight = router_weights_[index];
  // The user's forward step may weight tokens, so the gradient is certain only without one.
  if (!loss_step_) options.loss_grad = {.value = weights_[index], .is_certain = !forward_step_};
  PassOutput output = forward_step_ ? forward_step_(chunk_, hidden, batches_[index], options)
                                    : chunk_.forward(hidden, batches_[index], options);
  results_.router_records[index] = output.router;
  return output;
}

at::Tensor ModelStage::forward(int microbatch, const at::Tensor& input) {
  const auto index = static_cast<size_t>(microbatch);
  PassOutput output;
  if (chunk_.passes_expert_counts()) {
    PassedCounts counts(chunk_.experts());
    const at::Tensor hidden =
        input.defined() ? counts.received(input, chunk_.hidden_shape(batch(microbatch))) : at::Tensor();
    output = run_chunk(index, hidden);
    counts.add(output.router, is_last());
    if (!is_last()) return counts.sent(output.value);
  } else {
    output = run_chunk(index, input);
    if (!is_last()) return output.value;
  }
  if (output.token_statistics) results_.token_statistics[index] = *output.token_statistics;
  if (const at::Tensor& mtp = output.mtp_losses; mtp.defined()) {
    results_.mtp_losses = results_.mtp_losses.defined() ? results_.mtp_losses.add(mtp) : mtp;
  }
  const at::Tensor& losses = output.value;
  const StageLoss loss = loss_step_ ? loss_step_(losses, microbatch) : StageLoss{losses, losses.detach()};
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
