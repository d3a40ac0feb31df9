#include "core/models/model_chunk.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/config_error.h"
#include "core/models/block.h"
#include "core/models/layer_context.h"
#include "core/models/parameter_plan.h"
#include "core/models/router_record.h"
#include "core/models/token_slices.h"
#include "core/ops/cross_entropy.h"
#include "core/ops/rms_norm.h"
#include "core/ops/rope_angles.h"
#include "core/ops/vocab_share.h"
#include "core/parallel/parallel_linear.h"
#include "core/parallel/vocabulary.h"

namespace concord {
namespace {

using at::Tensor;

c10::ScalarType type_of(const ModelConfig& config, const ModelArgs& args) {
  if (args.dtype) return *args.dtype;
  if (config.dtype == "bfloat16") return at::kBFloat16;
  if (config.dtype == "float16") return at::kHalf;
  return config.dtype == "float64" ? at::kDouble : at::kFloat;
}

void check_args(const ModelArgs& args) {
  if (args.options.cp_comm_type != "p2p" && args.options.cp_comm_type != "all_gather") {
    throw ConfigError(fmt::format("cp_comm_type is '{}'; must be p2p or all_gather", args.options.cp_comm_type));
  }
}

void check_experts(const ModelConfig& config, const RouterLosses& losses, const StageLayers& layers,
                   const RankLayout& layout) {
  if (config.experts.layers() == 0) return;
  if (layout.ep() != 1 || layout.etp() != layout.tp()) {
    throw ConfigError(
        fmt::format("expert_model_parallel_size {} and expert_tensor_parallel_size {}: experts are split as the other "
                    "layers so far; they must be 1 and {}, tensor_model_parallel_size",
                    layout.ep(), layout.etp(), layout.tp()));
  }
  if (losses.balancing == Balancing::pooled && losses.coefficient > 0 && layers.layers != config.num_hidden_layers) {
    throw ConfigError(
        "the load-balancing loss of Hugging Face counts the tokens of all layers together, so all of them must be on "
        "one pipeline stage; set moe_router_load_balancing_type to aux_loss, which counts per layer, or to none");
  }
}

ParameterPlanOptions plan_options(const ModelArgs& args, const RankLayout& layout, bool borrows_output) {
  return {.tp = layout.tp(),
          .sequence_parallel = args.options.sequence_parallel,
          .make_vocab_size_divisible_by = args.options.make_vocab_size_divisible_by,
          .borrows_output = borrows_output};
}

Parameter make_parameter(const ParameterPlan& plan, const ShardPlace& place, at::TensorOptions options) {
  Parameter parameter{.spec = plan.spec, .init = plan.init, .value = {}};
  parameter.value = at::empty(local_shape(plan.spec, place), options).requires_grad_(true);
  parameter.uses = plan.uses;
  parameter.partial_over_tp = plan.partial_over_tp;
  parameter.shared_embedding = plan.shared_embedding;
  return parameter;
}

}  // namespace

// What forward walks over. Lives as long as the chunk, at one address: the backward of recomputed layers refers to it.
struct ModelChunk::Parts {
  LayerContext layers;
  std::vector<Block> blocks;
  std::vector<LayerRun> runs;
  Parameter* embedding = nullptr;
  Parameter* norm = nullptr;
  Parameter* output = nullptr;
};

ModelChunk::ModelChunk(const ModelConfig& config, const ModelArgs& args, const StageLayers& layers,
                       ParallelContext& context, Parameter* output_weight)
    : config_(config),
      args_(args),
      layers_(layers),
      context_(context),
      dtype_(type_of(config, args)),
      parts_(std::make_unique<Parts>()) {
  check_args(args);
  const ShardPlace place = shard_place(context.layout(), context.rank());
  const auto options = at::TensorOptions(dtype_).device(context.torch_device());
  const auto plans = plan_parameters(config, layers, plan_options(args, context.layout(), output_weight != nullptr));
  for (const ParameterPlan& plan : plans) parameters_.push_back(make_parameter(plan, place, options));
  const auto find = [this](const std::string& name) {
    const auto found =
        std::find_if(parameters_.begin(), parameters_.end(), [&](const Parameter& p) { return p.spec.name == name; });
    return found == parameters_.end() ? nullptr : &*found;
  };
  Parts& parts = *parts_;
  check_experts(config, router_losses(args.options.moe, config.experts), layers, context.layout());
  parts.layers = {.config = config,
                  .recompute = args.options.recompute,
                  .sequence_parallel = args.options.sequence_parallel,
                  .gathers_keys = args.options.cp_comm_type == "all_gather",
                  .tp = &context.group(GroupKind::tp),
                  .cp = &context.group(GroupKind::cp),
                  .rng = &context.rng(),
                  .find = find};
  parts.runs = recompute_plan(args.options.recompute, layers.layers);
  for (int64_t i = 0; i < layers.layers; ++i) parts.blocks.emplace_back(parts.layers, layers.first_layer + i);
  if (layers.embedding) parts.embedding = find("model.embed_tokens.weight");
  if (!layers.loss) return;
  parts.norm = find("model.norm.weight");
  parts.output = find(config.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight");
  if (parts.output == nullptr) {  // borrowed: this rank has both ends of the model
    parts.output = output_weight;
    output_weight->uses = 2;
    output_weight->shared_embedding = false;
  }
}

ModelChunk::~ModelChunk() = default;

Parameter* ModelChunk::embedding() { return parts_->embedding; }

void ModelChunk::initialise() {
  const ShardPlace place = shard_place(context_.layout(), context_.rank());
  for (Parameter& parameter : parameters_) {
    initialise_weights(parameter.value, parameter.spec, place, parameter.init, args_.seed, context_.device());
  }
}

std::vector<int64_t> ModelChunk::hidden_shape(const MicroBatch& batch) const {
  const Parts& parts = *parts_;
  const int64_t tokens = batch.input_ids.size(1);
  const int64_t shares = parts.layers.cp->size() * (parts.layers.sequence_parallel ? parts.layers.tp->size() : 1);
  if (tokens % shares != 0) {
    throw ConfigError(
        fmt::format("cannot split a batch of {} tokens per row over context_parallel_size {} and, for sequence "
                    "parallelism, tensor_model_parallel_size {}; pad it to a multiple of {}",
                    tokens, parts.layers.cp->size(), parts.layers.tp->size(), shares));
  }
  return {tokens / shares, batch.input_ids.size(0), config_.hidden_size};
}

at::Tensor ModelChunk::own_tokens(const Tensor& x, const MicroBatch& batch) const {
  return concord::own_tokens(x, batch, *parts_->layers.cp);
}

int64_t ModelChunk::counted_tokens(const MicroBatch& batch) const {
  check_batch(batch, /*with_labels=*/true);
  return own_tokens(batch.labels, batch).ne(kIgnoredLabel).sum().item<int64_t>();
}

// ---------------------------------------------------------------------------------------------------------- forward
// Shapes in names: p, s, b, h as in layer_context.h; v this rank's rows of the padded vocabulary.

SharedInputs ModelChunk::layer_inputs(const MicroBatch& batch) const {
  const TokenPositions positions = token_positions(batch, *parts_->layers.cp, context_.torch_device());
  const RopeAngles angles = rope_angles(rope_frequencies(config_.rope, positions.length), positions.own);
  const auto type = dtype_ == at::kDouble ? at::kDouble : at::kFloat;
  auto inputs = std::make_shared<LayerInputs>();
  inputs->cos = angles.cos.to(type);
  inputs->sin = angles.sin.to(type);
  inputs->cu_seqlens = batch.cu_seqlens;
  if (config_.experts.layers() > 0 && c10::GradMode::is_enabled()) {
    const ExpertConfig& experts = config_.experts;
    inputs->router = std::make_shared<RouterRecord>(
        RouterRecord{.losses = router_losses(args_.options.moe, experts),
                     .weight = router_loss_weight_,
                     .rows = batch.input_ids.size(0),
                     .row_tokens = batch.input_ids.size(1),
                     .experts = experts.num_experts,
                     .choices = experts.num_experts_per_tok,
                     .sparse_layers = experts.layers(),
                     .layers = std::vector<RouterRecord::Layer>(static_cast<size_t>(config_.num_hidden_layers))});
  }
  return inputs;
}

Tensor ModelChunk::embed(const MicroBatch& batch) const {
  const Tensor ids_sb = own_tokens(batch.input_ids, batch).t().contiguous().to(context_.torch_device());
  const Parameter& table = *parts_->embedding;
  const LayerContext& layers = parts_->layers;
  const Tensor x_pbh = vocab_parallel_embedding(table.used(), ids_sb, config_.vocab_size, *layers.tp,
                                                layers.sequence_parallel, table.grad_sink());
  return config_.embedding_multiplier == 1 ? x_pbh : x_pbh.mul(config_.embedding_multiplier);
}

Tensor ModelChunk::run_layers(const LayerRun& run, Tensor x_pbh, const SharedInputs& inputs) const {
  for (int64_t i = run.begin; i < run.end; ++i) {
    x_pbh = parts_->blocks[static_cast<size_t>(i)].forward(x_pbh, inputs);
    if (observer_) observer_(fmt::format("layers.{}", layers_.first_layer + i), x_pbh);
  }
  return x_pbh;
}

Tensor ModelChunk::token_losses(const Tensor& x_pbh, const MicroBatch& batch) const {
  const LayerContext& layers = parts_->layers;
  const Parameter& output = *parts_->output;
  const Tensor normed_pbh = rms_norm(x_pbh, parts_->norm->used(), config_.rms_norm_eps);
  if (observer_) observer_("norm", normed_pbh);
  const ParallelLinearOptions options{.name = output.spec.name, .sequence_parallel = layers.sequence_parallel};
  // Before the product, which has a hundred times as many elements after it.
  const Tensor scaled_pbh = config_.logits_scaling == 1 ? normed_pbh : normed_pbh.div(config_.logits_scaling);
  const Tensor logits_sbv =
      column_parallel_linear(scaled_pbh, output.used(), {}, *layers.tp, options, output.grad_sink());
  if (observer_) observer_("logits", logits_sbv);
  const Tensor labels_sb = own_tokens(batch.labels, batch).t().contiguous().to(logits_sbv.device());
  const CrossEntropyOptions how{
      .vocabulary = config_.vocab_size, .ignore_index = kIgnoredLabel, .overwrite_logits = !observer_};
  return cross_entropy(logits_sbv, labels_sb, how, vocab_share(*layers.tp)).t().contiguous();
}

Tensor ModelChunk::forward(const Tensor& hidden, const MicroBatch& batch) {
  check_batch(batch, layers_.loss);
  const std::vector<int64_t> shape = hidden_shape(batch);
  if (hidden.defined() == layers_.embedding || (hidden.defined() && hidden.sizes() != c10::IntArrayRef(shape))) {
    throw ConfigError(fmt::format("a stage {} the embedding got hidden of [{}]; expected {}",
                                  layers_.embedding ? "with" : "without",
                                  hidden.defined() ? fmt::format("{}", fmt::join(hidden.sizes(), ", ")) : "",
                                  layers_.embedding ? "none" : fmt::format("[{}]", fmt::join(shape, ", "))));
  }
  const SharedInputs inputs = layer_inputs(batch);
  Tensor x_pbh = layers_.embedding ? embed(batch) : hidden;
  if (observer_ && layers_.embedding) observer_("embedding", x_pbh);
  for (const LayerRun& run : parts_->runs) {
    x_pbh = recompute_if(run.recomputed, parts_->layers, x_pbh,
                         [this, run, inputs](const Tensor& input_pbh) { return run_layers(run, input_pbh, inputs); });
  }
  router_record_ = inputs->router;
  return layers_.loss ? token_losses(x_pbh, batch) : x_pbh;
}

}  // namespace concord
