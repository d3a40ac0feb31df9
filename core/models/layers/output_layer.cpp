#include "core/models/layers/output_layer.h"

#include <ATen/core/grad_mode.h>

#include <memory>
#include <vector>

#include "core/models/layers/loss_chunks.h"
#include "core/models/micro_batch.h"
#include "core/ops/gated_activation.h"
#include "core/ops/loss/vocab_share.h"
#include "core/parallel/mappings.h"
#include "core/parallel/parallel_linear.h"
#include "core/parallel/recompute.h"

namespace concord {

// Shapes in names: p, s, b, h as in layer_context.h; v this rank's rows of the padded vocabulary, n tokens.

using at::Tensor;

namespace {

// |weight| with a sink that counts as added to when the last of |left| parts of its gradient is: others wait for one
// gradient per use.
Parameter announced_once(const Parameter& weight, const std::shared_ptr<size_t>& left) {
  Parameter same = weight;
  if (!weight.sink.added) return same;
  same.sink.added = [left, added = weight.sink.added] {
    if (--*left == 0) added();
  };
  return same;
}

}  // namespace

OutputLayer::OutputLayer(const LayerContext& context, Parameter& weight, const ModelOptions& options)
    : context_(&context),
      options_(&options),
      weight_(&weight),
      adapter_(context, "lm_head", {{"lm_head", weight.value.size(0)}}, options.sequence_parallel) {
  weight.comes_in_parts = options.loss_chunk_size > 0;
}

// Applied before the product, whose result has a hundred times more elements.
Tensor OutputLayer::scaled(const Tensor& normed_pbh) const {
  const double scaling = context_->config.logits_scaling;
  return scaling == 1 ? normed_pbh : normed_pbh.div(scaling);
}

Tensor OutputLayer::logits(const Tensor& normed_pbh, const Parameter& weight) const {
  const ParallelLinearOptions options{.name = weight.spec.name, .sequence_parallel = context_->sequence_parallel};
  const Tensor logits_sbv = adapter_.column(scaled(normed_pbh), weight, nullptr, options);
  const double cap = context_->config.final_logit_softcapping;
  return cap > 0 ? soft_cap(logits_sbv, cap) : logits_sbv;
}

CrossEntropyOptions OutputLayer::cross_entropy_options(double expected_grad) const {
  const bool trains = at::GradMode::is_enabled();
  return {.vocabulary = context_->config.vocab_size,
          .ignore_index = kIgnoredLabel,
          .label_smoothing = trains ? options_->label_smoothing_factor : 0,
          .z_loss = trains ? options_->z_loss_coeff : 0,
          .overwrite_logits = true,
          .expected_grad = expected_grad};
}

Tensor OutputLayer::losses_of(const Tensor& logits_sbv, const Tensor& labels_sb, const CrossEntropyOptions& how) const {
  return cross_entropy(logits_sbv, labels_sb, how, vocab_share(*context_->tp)).t().contiguous();
}

PassOutput OutputLayer::losses(const Tensor& normed_pbh, const Tensor& labels_sb, const PassOptions& pass) const {
  const ExpectedGrad& expected = pass.loss_grad;
  CrossEntropyOptions how = cross_entropy_options(expected.value);
  std::vector<TokenStatistics> measured;
  const LogitsReader measure = [&](const Tensor& logits, const Tensor& labels) {  // before they are overwritten
    const Tensor logits_sbv = logits.view({-1, labels_sb.size(1), logits.size(-1)});
    const Tensor own_sb = labels.view({-1, labels_sb.size(1)});
    measured.push_back(token_statistics(logits_sbv, own_sb, how.vocabulary, vocab_share(*context_->tp)));
  };
  const LogitsReader reader = pass.measure_tokens ? measure : LogitsReader();
  const int64_t tokens = tokens_at_a_time(expected);
  PassOutput output;
  if (pass.observer || tokens == 0 || tokens >= labels_sb.numel()) {
    const Tensor logits_sbv = logits(normed_pbh);
    pass.observe("logits", logits_sbv);
    how.overwrite_logits = !pass.observer;
    if (reader) reader(logits_sbv, labels_sb);
    if (reader) output.token_statistics = measured.front();
    output.value = losses_of(logits_sbv, labels_sb, how);
    return output;
  }
  const bool once = computes_chunks_once(expected);
  const Tensor x_pbh = once ? of_all_ranks(scaled(normed_pbh)) : normed_pbh;
  const LossChunks chunks(x_pbh, labels_sb, tokens, labels_sb.size(0) / x_pbh.size(0));
  const int64_t rows = chunks.list().front().labels_sb.numel();
  output.value = once ? losses_computed_once(x_pbh, labels_sb, {how, rows, reader, vocab_share(*context_->tp)})
                      : losses_computed_twice(chunks, how, reader);
  if (reader) output.token_statistics = chunks.joined(measured);
  return output;
}

bool OutputLayer::computes_chunks_once(const ExpectedGrad& expected) const {
  const GradSink* sink = weight_->grad_sink();
  const bool is_product = adapter_.is_off() && !weight_->nf4 && context_->config.final_logit_softcapping == 0;
  const bool is_known = expected.is_certain && expected.value != 0;
  return is_known && is_product && (!weight_->value.requires_grad() || (sink && !sink->deferred));
}

int64_t OutputLayer::tokens_at_a_time(const ExpectedGrad& expected) const {
  if (options_->loss_chunk_size >= 0) return options_->loss_chunk_size;
  return !at::GradMode::is_enabled() || computes_chunks_once(expected) ? options_->free_loss_chunk : 0;
}

// The tokens for which this rank's rows of the vocabulary are used, whose gradient is a part of a sum.
Tensor OutputLayer::of_all_ranks(const Tensor& x_pbh) const {
  if (context_->tp->size() == 1) return x_pbh;
  return context_->sequence_parallel ? gather_into_region(x_pbh, *context_->tp, 0)
                                     : copy_to_region(x_pbh, *context_->tp);
}

Tensor OutputLayer::losses_computed_once(const Tensor& x_sbh, const Tensor& labels_sb, const PiecewiseLoss& how) const {
  const Tensor x_nh = x_sbh.flatten(0, 1);
  const Tensor losses_n = linear_cross_entropy(x_nh, weight_->used(), labels_sb.flatten(), weight_->grad_sink(), how);
  return losses_n.view(labels_sb.sizes()).t().contiguous();
}

Tensor OutputLayer::losses_computed_twice(const LossChunks& chunks, const CrossEntropyOptions& how,
                                          const LogitsReader& reader) const {
  std::vector<Tensor> losses;
  const auto left = std::make_shared<size_t>(chunks.list().size());
  for (const LossChunk& chunk : chunks.list()) {
    // Runs here, without gradients, and again in backward, when |reader| does not exist any more.
    const auto run = [this, &reader, how, left, labels = chunk.labels_sb](const std::vector<Tensor>& x) {
      CrossEntropyOptions own = how;
      const bool is_again = at::GradMode::is_enabled();
      if (!is_again) own.expected_grad = 0;
      const Tensor logits_sbv = logits(x[0], announced_once(*weight_, left));
      if (!is_again && reader) reader(logits_sbv, labels);
      return std::vector{losses_of(logits_sbv, labels, own)};
    };
    losses.push_back(recompute(run, {chunk.normed_pbh}, *context_->rng)[0]);
  }
  return chunks.joined(losses);
}

}  // namespace concord
