// ModelChunk::forward: one micro-batch through the layers of a stage.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/record_function.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/config_error.h"
#include "core/models/layers/backward_ranges.h"
#include "core/models/layers/router_record.h"
#include "core/models/model_parts.h"
#include "core/models/token_slices.h"
#include "core/ops/attention/rope_angles.h"
#include "core/ops/linear.h"
#include "core/ops/visit_type.h"
#include "core/parallel/mappings.h"
#include "core/parallel/vocabulary.h"

namespace concord {

// Shapes in names: p, s, b, h as in layer_context.h.

using at::Tensor;

LayerAngles layer_angles(const ModelConfig& config, int64_t length, const Tensor& positions, c10::ScalarType dtype) {
  const RopeFrequencies frequencies = rope_frequencies(config.rope, length);
  const RopeAngles all =
      positions.dim() == 3 ? mrope_angles(frequencies, config.rope, positions) : rope_angles(frequencies, positions);
  LayerAngles angles{all.cos, all.sin, {}, {}, {}};
  if (config.window_rope) {
    const RopeAngles windowed = rope_angles(rope_frequencies(*config.window_rope, length), positions);
    angles.window_cos = windowed.cos;
    angles.window_sin = windowed.sin;
  }
  const int64_t original = config.rope.original_max_position_embeddings;
  if (config.query_scaling_beta != 0 && length > original) {
    const Tensor times = positions.unsqueeze(-1).to(at::kFloat).div(static_cast<double>(original)).floor();
    angles.query_scale = times.add(1).log().mul(config.query_scaling_beta).add(1);
  }
  const auto type = dtype == at::kDouble ? at::kDouble : at::kFloat;
  return angles.each([&](const Tensor& x) { return x.to(type); });
}

// Angles of sequences that are not packed are cached for the next micro-batch: computing them begins with a copy to the
// device, which the host waits for.
LayerAngles ModelChunk::angles_of(const MicroBatch& batch) const {
  Parts& parts = *parts_;
  const int64_t tokens = batch.input_ids.size(1);
  const bool has_media = batch.pixel_values.defined();
  const bool is_whole = !batch.position_ids.defined() && batch.cu_seqlens.empty() && !has_media;
  if (is_whole && parts.tokens_of_angles == tokens) return parts.angles;
  MicroBatch placed = batch;
  if (has_media && !batch.position_ids.defined()) {
    placed.position_ids = media_positions(batch, config_.vision.tokens, at::kCPU).own.transpose(1, 2);
  }
  const TokenPositions positions = token_positions(placed, *parts.layers.cp, context_.torch_device());
  const LayerAngles angles = layer_angles(config_, positions.length, positions.own, dtype_);
  if (!is_whole) return angles;
  parts.tokens_of_angles = tokens;
  parts.angles = angles;
  return angles;
}

std::optional<LayerDropout> ModelChunk::dropout_of(const MicroBatch& batch) const {
  const ModelOptions& options = args_.options;
  const double attention = options.attention_dropout < 0 ? config_.attention_dropout : options.attention_dropout;
  if (attention == 0 && options.hidden_dropout == 0 && options.neftune_noise_alpha == 0) return {};
  const LayerContext& layers = parts_->layers;
  std::vector<TokenRun> tokens{{0, batch.input_ids.size(1)}};
  if (layers.cp->size() > 1) tokens = context_slices(sequence_lengths(batch), layers.cp->size(), layers.cp->rank());
  if (layers.sequence_parallel) {
    const int64_t own = batch.input_ids.size(1) / layers.cp->size() / layers.tp->size();
    tokens = part_of_runs(tokens, layers.tp->rank() * own, own);
  }
  const auto elements = static_cast<double>(batch.input_ids.size(1) * config_.hidden_size);  // of a row
  return LayerDropout{.hidden = options.hidden_dropout,
                      .attention = attention,
                      .noise = options.neftune_noise_alpha / std::sqrt(elements),
                      .key = (static_cast<uint64_t>(args_.seed) << 32) + static_cast<uint64_t>(batch.draws->step),
                      .first_row = batch.draws->first_row,
                      .tokens = std::move(tokens)};
}

std::shared_ptr<RouterRecord> ModelChunk::router_record(const MicroBatch& batch, const PassOptions& options) const {
  const ExpertConfig& experts = config_.experts;
  if (experts.layers() == 0 || !c10::GradMode::is_enabled()) return nullptr;
  const auto layers = static_cast<size_t>(config_.num_hidden_layers + config_.mtp_layers);
  auto record = std::make_shared<RouterRecord>(RouterRecord{.losses = router_losses_,
                                                            .weight = options.router_loss_weight,
                                                            .rows = batch.input_ids.size(0),
                                                            .row_tokens = batch.input_ids.size(1),
                                                            .experts = experts.num_experts,
                                                            .choices = experts.num_experts_per_tok,
                                                            .sparse_layers = experts.layers(),
                                                            .layers = std::vector<RouterRecord::Layer>(layers),
                                                            .step = {},
                                                            .chosen_in_all_layers = {}});
  if (router_losses_.balancing == Balancing::global_aux) {
    record->step = options.step_counts ? options.step_counts : std::make_shared<CountsOfStep>();
    record->step->layers.resize(layers);
  }
  return record;
}

std::shared_ptr<LayerInputs> ModelChunk::layer_inputs(const MicroBatch& batch, const PassOptions& options) const {
  auto inputs = std::make_shared<LayerInputs>();
  static_cast<LayerAngles&>(*inputs) = angles_of(batch);
  inputs->cu_seqlens = batch.cu_seqlens;
  if (batch.draws && c10::GradMode::is_enabled()) inputs->dropout = dropout_of(batch);
  inputs->router = router_record(batch, options);
  inputs->observer = options.observer;
  return inputs;
}

// |noise|: null for none. It is added where transformers' hook adds it: to the output of the embedding's module, which
// multiplies it itself if it rounds the multiplier.
Tensor ModelChunk::embed(const Tensor& ids_sb, const LayerDropout* noise) const {
  const Parameter& table = *parts_->embedding;
  const LayerContext& layers = parts_->layers;
  const auto noisy = [&](const Tensor& x_pbh) { return noise == nullptr ? x_pbh : with_noise(x_pbh, *noise); };
  const Tensor x_pbh = vocab_parallel_embedding(table.used(), ids_sb, config_.vocab_size, *layers.tp,
                                                layers.sequence_parallel, table.grad_sink());
  const double multiplier = config_.embedding_multiplier;
  if (multiplier == 1) return noisy(x_pbh);
  if (!config_.rounds_embedding_multiplier) return noisy(x_pbh).mul(multiplier);
  return noisy(x_pbh.mul(at::scalar_tensor(multiplier, dtype_).item<double>()));
}

namespace {

// Returns the row of features that each of this rank's tokens takes [p b], on the host; -1: none. In generation all
// ranks have all tokens.
Tensor own_feature_rows(const MicroBatch& batch, const LayerContext& layers, bool generates) {
  const Tensor ids_bs = batch.input_ids.cpu().contiguous();
  const FeatureRows taken = feature_rows({ids_bs.const_data_ptr<int64_t>(), static_cast<size_t>(ids_bs.numel())},
                                         layers.config.vision.tokens, batch.media);
  Tensor rows_bs = at::full(ids_bs.sizes(), -1, at::kLong);
  rows_bs.view(-1).index_copy_(0, at::tensor(taken.tokens, at::kLong), at::tensor(taken.features, at::kLong));
  if (!generates) rows_bs = own_tokens(rows_bs, batch, *layers.cp);
  const Tensor rows_sb = rows_bs.t();
  if (!layers.sequence_parallel) return rows_sb.flatten();
  return rows_sb.chunk(layers.tp->size())[static_cast<size_t>(layers.tp->rank())].flatten();
}

}  // namespace

// Runs the tower, and notes in |inputs| which tokens take its features. Rows of these are in the order of the tokens.
// Each rank runs all of it and uses the features of its own tokens. The gradient of the features is summed over the
// ranks of sequence parallelism before the tower's backward, so that its parameters have the same gradients on all tp
// ranks; the partial gradients of cp ranks are summed with those of data parallelism.
VisionFeatures ModelChunk::vision_features(const MicroBatch& batch, LayerInputs* inputs) const {
  if (!layers_.embedding || !batch.pixel_values.defined()) return {};
  if (!parts_->tower) {
    throw ConfigError("batch: has pixel values, but the model has no vision tower in use (ModelArgs::vision_tower)");
  }
  const Tensor rows_pb = own_feature_rows(batch, parts_->layers, inputs->cache != nullptr);
  MediaGrids grids = batch.media.images;
  grids.insert(grids.end(), batch.media.videos.begin(), batch.media.videos.end());
  VisionFeatures features = parts_->tower->forward(batch.pixel_values, grids);
  const Tensor tokens = rows_pb.ge(0).nonzero().squeeze(1);
  const at::Device device = context_.torch_device();
  const Tensor order = rows_pb.index_select(0, tokens).to(device);
  inputs->media_tokens = tokens.to(device);
  const auto own = [&](const Tensor& all) {
    const LayerContext& layers = parts_->layers;
    return (layers.sequence_parallel ? copy_to_region(all, *layers.tp) : all).index_select(0, order);
  };
  features.tokens = own(features.tokens);
  for (Tensor& each : features.deepstack) each = own(each);
  return features;
}

Tensor with_features(const Tensor& x_pbh, const VisionFeatures& features, const LayerInputs& inputs) {
  return x_pbh.flatten(0, 1).index_copy(0, inputs.media_tokens, features.tokens).view(x_pbh.sizes());
}

// |given|: x_pbh, and the features that the first layers of the run add to the image tokens.
Tensor ModelChunk::run_layers(const LayerRun& run, const std::vector<Tensor>& given, const SharedInputs& inputs) const {
  BackwardRanges ranges;
  Residual stream = ranges.before_layers({given[0]});
  for (int64_t i = run.begin; i < run.end; ++i) {
    const auto name = [&] { return fmt::format("layers.{}", layers_.first_layer + i); };
    RECORD_USER_SCOPE(name());  // evaluated only while a profile is recorded
    stream = parts_->blocks[static_cast<size_t>(i)].forward(stream, inputs);
    const auto added = static_cast<size_t>(i - run.begin) + 1;
    if (inputs->observer || added < given.size()) stream = {stream.sum(parts_->layers)};
    if (inputs->observer) inputs->observer(name(), stream.x_pbh);
    if (added < given.size()) {
      const Tensor rows = stream.x_pbh.flatten(0, 1).index_add(0, inputs->media_tokens, given[added]);
      stream = {rows.view(stream.x_pbh.sizes())};
    }
    stream = ranges.after_layer(stream, layers_.first_layer + i);
  }
  return stream.sum(parts_->layers);
}

Tensor ModelChunk::last_norm(const Tensor& x_pbh) const { return normed(x_pbh, parts_->norm, parts_->layers); }

// Returns this rank's labels [s, b] on the device.
Tensor ModelChunk::own_labels(const MicroBatch& batch) const {
  return own_tokens(batch.labels, batch).t().contiguous().to(context_.torch_device());
}

// Returns the score of each token. Under sequence parallelism each tp rank scores its own tokens; the sum over ranks of
// scores that are padded with 0 is the whole, and its gradient, equal on all ranks, is passed to each part unchanged.
Tensor ModelChunk::token_scores(const Tensor& x_pbh) const {
  const LayerContext& layers = parts_->layers;
  const Tensor normed_pbh = last_norm(x_pbh);
  const Tensor scores_pb = linear(normed_pbh, parts_->score->used(), {}, parts_->score->grad_sink()).squeeze(-1);
  const Tensor wide_pb = scores_pb.to(ops::sum_type(scores_pb.scalar_type()));
  if (!layers.sequence_parallel) return wide_pb.t().contiguous();
  const int64_t own = wide_pb.size(0), rank = layers.tp->rank(), ranks = layers.tp->size();
  const Tensor padded_sb = at::constant_pad_nd(wide_pb, {0, 0, rank * own, (ranks - 1 - rank) * own});
  return reduce_from_region(padded_sb, *layers.tp).t().contiguous();
}

PassOutput ModelChunk::token_losses(const Tensor& x_pbh, const MicroBatch& batch, const PassOptions& options,
                                    const SharedInputs& inputs) const {
  const Tensor normed_pbh = last_norm(x_pbh);
  options.observe("norm", normed_pbh);
  PassOutput output = parts_->output->losses(normed_pbh, own_labels(batch), options);
  if (parts_->mtp.empty() || !c10::GradMode::is_enabled()) return output;
  add_mtp_losses(normed_pbh, batch, inputs, &output);
  return output;
}

// Adds the gradient of the MTP losses to |output|. Megatron's loss is factor / D sum_k mean_k, the mean over the n_k
// tokens that depth k predicts. The caller divides the sum over tokens by n_0, the counted tokens of a micro-batch or
// of a step. So the loss of a token at depth k is multiplied by n_0 / n_k, which is Megatron's rule for both.
void ModelChunk::add_mtp_losses(Tensor hidden_pbh, MicroBatch batch, const SharedInputs& inputs,
                                PassOutput* output) const {
  const bool again = args_.options.recompute.granularity == RecomputeGranularity::full;
  const double factor = args_.options.mtp.loss_scaling_factor / static_cast<double>(config_.mtp_layers);
  const auto counted = [&] { return batch.labels.ne(kIgnoredLabel).sum().to(context_.torch_device()).to(at::kDouble); };
  const Tensor first = counted();
  Tensor sum_bs;
  std::vector<Tensor> logged;
  for (const MtpLayer& layer : parts_->mtp) {
    batch.labels = labels_that_follow(batch.labels, batch.cu_seqlens);
    batch.input_ids =
        labels_that_follow(batch.input_ids, batch.cu_seqlens).clamp_min(0);  // the last ones predict nothing
    const Tensor ids_sb = own_tokens(batch.input_ids, batch).t().contiguous().to(context_.torch_device());
    const auto run = [&layer, inputs](const std::vector<Tensor>& x) {
      return std::vector{layer.forward(x[0], x[1], inputs)};
    };
    const std::vector<Tensor> given{embed(ids_sb), hidden_pbh};
    hidden_pbh = (again ? recompute(run, given, *parts_->layers.rng) : run(given))[0];
    const Tensor losses_bs = parts_->output->losses(hidden_pbh, own_labels(batch), {}).value;
    const Tensor share = (first / counted().clamp_min(1) * factor).to(losses_bs.scalar_type());
    sum_bs = sum_bs.defined() ? sum_bs + losses_bs * share : losses_bs * share;
    logged.push_back(losses_bs.detach().sum().to(at::kFloat));
    logged.push_back(own_labels(batch).ne(kIgnoredLabel).sum().to(at::kFloat));
  }
  output->mtp_losses = at::stack(logged).view({-1, 2});
  output->value = output->value + (sum_bs - sum_bs.detach());
}

void ModelChunk::check_hidden(const Tensor& hidden, const MicroBatch& batch) const {
  const std::vector<int64_t> shape = hidden_shape(batch);
  if (hidden.defined() != layers_.embedding && (!hidden.defined() || hidden.sizes() == c10::IntArrayRef(shape))) return;
  throw ConfigError(fmt::format("a stage {} the embedding got hidden of [{}]; expected {}",
                                layers_.embedding ? "with" : "without",
                                hidden.defined() ? fmt::format("{}", fmt::join(hidden.sizes(), ", ")) : "",
                                layers_.embedding ? "none" : fmt::format("[{}]", fmt::join(shape, ", "))));
}

PassOutput ModelChunk::forward(const Tensor& hidden, const MicroBatch& batch, const PassOptions& options) {
  check_batch(batch, layers_.loss);
  check_hidden(hidden, batch);
  if (!options.with_adapter && parts_->layers.adapter && c10::GradMode::is_enabled()) {
    throw ConfigError("a pass without the adapter cannot be differentiated; run it under NoGradGuard");
  }
  const ScopedFlag without_adapter(parts_->layers.adapter_off, !options.with_adapter);
  if (parts_->fp8) parts_->fp8->count_inputs(c10::GradMode::is_enabled());
  const std::shared_ptr<LayerInputs> own_inputs = layer_inputs(batch, options);
  const VisionFeatures features = vision_features(batch, own_inputs.get());
  const SharedInputs inputs = own_inputs;
  const auto own_ids = [&] { return own_tokens(batch.input_ids, batch).t().contiguous().to(context_.torch_device()); };
  Tensor x_pbh = layers_.embedding ? embed(own_ids(), inputs->dropout ? &*inputs->dropout : nullptr) : hidden;
  if (features.tokens.defined()) {
    x_pbh = with_features(x_pbh, features, *inputs);
  }
  if (inputs->dropout && layers_.embedding) x_pbh = hidden_dropout(x_pbh, *inputs->dropout, kEmbeddingSite);
  if (layers_.embedding) options.observe("embedding", x_pbh);
  const auto pass = parts_->offload && c10::GradMode::is_enabled() ? parts_->offload->begin_pass() : nullptr;
  int64_t unit = 0;
  for (const LayerRun& run : parts_->runs) {
    std::vector<Tensor> given{x_pbh};
    const auto end = std::min(static_cast<int64_t>(features.deepstack.size()), run.end);
    for (int64_t i = run.begin; i < end; ++i) given.push_back(features.deepstack[static_cast<size_t>(i)]);
    const auto layers = [this, run, inputs](const std::vector<Tensor>& tensors) {
      return std::vector{run_layers(run, tensors, inputs)};
    };
    const auto kept_by = pass && run.recomputed ? pass->input_of(unit++) : nullptr;
    x_pbh = (run.recomputed ? recompute(layers, given, *parts_->layers.rng, kept_by) : layers(given))[0];
  }
  PassOutput output{x_pbh};
  if (layers_.loss && config_.is_reward_model) output.value = token_scores(x_pbh);
  if (layers_.loss && !config_.is_reward_model) output = token_losses(x_pbh, batch, options, inputs);
  output.router = inputs->router;
  return output;
}

}  // namespace concord
