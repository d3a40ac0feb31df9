// ModelChunk::decode: generation with a cache of keys and values.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/index.h>
#include <fmt/core.h>

#include <algorithm>
#include <iterator>

#include "core/base/config_error.h"
#include "core/models/layers/kv_cache.h"
#include "core/models/model_parts.h"
#include "core/models/token_slices.h"

namespace concord {

using at::Tensor;

namespace {

// Places the images of |prompts| on grids. Later tokens of a row follow its largest position.
void place_images(const MicroBatch& prompts, const Tensor& counts, const ModelConfig& config, c10::ScalarType dtype,
                  KvCache* cache) {
  const TokenPositions positions = media_positions(prompts, config.vision.tokens, prompts.input_ids.device());
  const Tensor padding_sb = cache->is_real(prompts.input_ids.size(1)).t().logical_not();
  const Tensor largest_b = positions.own.amax(0).masked_fill(padding_sb, -1).amax(0);
  cache->place_prompts(layer_angles(config, cache->sizes().capacity, positions.own, dtype), largest_b + 1 - counts);
}

}  // namespace

std::unique_ptr<KvCache> ModelChunk::make_cache(int64_t rows, int64_t capacity) const {
  refuse_generation();
  if (capacity > config_.max_position_embeddings) {
    throw ConfigError(fmt::format("{} tokens per row exceed the model's max_position_embeddings {}", capacity,
                                  config_.max_position_embeddings));
  }
  const auto positions = at::arange(capacity, at::TensorOptions(at::kLong).device(context_.torch_device()));
  const KvCache::Sizes sizes{.first_layer = layers_.first_layer,
                             .layers = layers_.layers,
                             .rows = rows,
                             .capacity = capacity,
                             .kv_heads = config_.kv_heads_of_rank(parts_->layers.tp->size()),
                             .head_dim = std::max(config_.head_dim, config_.value_dim())};
  return std::make_unique<KvCache>(sizes, layer_angles(config_, capacity, positions, dtype_),
                                   at::TensorOptions(dtype_).device(context_.torch_device()));
}

Tensor ModelChunk::decode(const Tensor& hidden, const NewTokens& tokens, KvCache& cache) {
  refuse_generation();
  const at::NoGradGuard no_grad;
  // Every tp rank has all tokens between layers: a step has one per row, which cannot be split.
  const ScopedFlag whole_sequences(parts_->layers.sequence_parallel, false);
  if (parts_->fp8) parts_->fp8->count_inputs(false);
  cache.begin(tokens);
  const MicroBatch prompts{.input_ids = tokens.ids, .pixel_values = tokens.pixel_values, .media = tokens.media};
  if (prompts.pixel_values.defined()) place_images(prompts, tokens.counts, config_, dtype_, &cache);
  const auto inputs = std::make_shared<LayerInputs>();
  static_cast<LayerAngles&>(*inputs) = cache.angles();
  inputs->cache = &cache;
  const VisionFeatures features = vision_features(prompts, inputs.get());
  Tensor x_sbh = layers_.embedding ? embed(tokens.ids.t().contiguous()) : hidden;
  if (features.tokens.defined()) x_sbh = with_features(x_sbh, features, *inputs);
  std::vector<Tensor> given{x_sbh};
  std::ranges::copy(features.deepstack, std::back_inserter(given));
  x_sbh = run_layers({.begin = 0, .end = std::ssize(parts_->blocks), .recomputed = false}, given, inputs);
  cache.end();
  if (!layers_.loss) return x_sbh;
  if (x_sbh.size(0) > 1) {  // selects the last token of each row that is not padding
    const Tensor row_b = at::arange(x_sbh.size(1), tokens.counts.options());
    x_sbh = at::index(x_sbh, {tokens.counts - 1, row_b}).unsqueeze(0);
  }
  return parts_->output->logits(last_norm(x_sbh)).squeeze(0);
}

}  // namespace concord
