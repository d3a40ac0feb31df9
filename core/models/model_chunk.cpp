#include "core/models/model_chunk.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/base/config_error.h"
#include "core/base/refused_combinations.h"
#include "core/checkpoint/hf_dtype.h"
#include "core/models/adapters/layer_adapter.h"
#include "core/models/layers/router_record.h"
#include "core/models/model_parts.h"
#include "core/models/parameter_plan.h"
#include "core/models/token_slices.h"
#include "core/parallel/context_attention.h"

namespace concord {

using at::Tensor;

namespace {

c10::ScalarType type_of(const ModelConfig& config, const ModelArgs& args) {
  return args.dtype ? *args.dtype : find_config_dtype(config.dtype).value_or(at::kFloat);
}

void check_args(const ModelArgs& args) {
  for (const double p : {args.options.attention_dropout, args.options.hidden_dropout}) {
    if (p < 1) continue;
    throw ConfigError(fmt::format("a dropout probability is {:g}; must be >= 0 and < 1", p));
  }
}

// Heads of linear attention are split over tp and cp ranks.
void check_delta(const ModelConfig& config, const LayerContext& context) {
  const int64_t tp = context.tp->size(), cp = context.cp->size();
  if (config.delta.count() == 0 || config.delta.key_heads % (tp * cp) == 0) return;
  throw ConfigError(
      fmt::format("linear_num_key_heads {} is not divisible by tensor_model_parallel_size {} times "
                  "context_parallel_size {}: ranks of both have heads of linear attention of their own; choose sizes "
                  "whose product divides it",
                  config.delta.key_heads, tp, cp));
}

void check_heads_of_ranks(const ModelConfig& config, const LayerContext& context) {
  if (context.cp_comm_type != CpCommType::a2a || context.cp->size() == 1) return;
  check_ulysses_heads(config.num_attention_heads, context.tp->size(), context.cp->size());
}

// Features of the tower stay on the stage that computes them.
void check_vision(const ModelConfig& config, const StageLayers& stage) {
  const std::vector<int64_t>& blocks = config.vision.deepstack;
  if (!config.vision.in_use || !stage.embedding || stage.layers >= std::ssize(blocks)) return;
  throw ConfigError(
      fmt::format("the first pipeline stage has {} of the layers, but the vision tower is on it and adds features to "
                  "the first {} layers (deepstack_visual_indexes [{}]); give the first stage at least {} layers with "
                  "pipeline_model_parallel_layout, or use fewer stages",
                  stage.layers, blocks.size(), fmt::join(blocks, ", "), blocks.size()));
}

void check_experts(const ModelConfig& config, const MoeArgs& moe, const LayerContext& context) {
  if (config.experts.layers() == 0) {
    if (context.ep->size() == 1) return;
    throw ConfigError(
        fmt::format("expert_model_parallel_size is {}, but no layer of this {} model has experts; remove it",
                    context.ep->size(), config.model_type));
  }
  if (context.tp->size() > 1 && !context.sequence_parallel && context.etp->ranks() != context.tp->ranks()) {
    throw ConfigError(
        fmt::format("expert_tensor_parallel_size {} with tensor_model_parallel_size {}: tokens go to experts from "
                    "ranks that each have some of them; set sequence_parallel to true, or split experts over the same "
                    "ranks as the other layers",
                    context.etp->size(), context.tp->size()));
  }
  if (moe.expert_capacity_factor < 0) {
    throw ConfigError(fmt::format("moe_expert_capacity_factor is {:g}; must be > 0, or 0 for experts without a limit",
                                  moe.expert_capacity_factor));
  }
  if (moe.pad_expert_input_to_capacity && moe.expert_capacity_factor == 0) {
    throw ConfigError(
        "moe_pad_expert_input_to_capacity is true, but experts have no capacity; set moe_expert_capacity_factor, "
        "or remove it");
  }
}

void check_tiles(const ModelConfig& config, const ModelOptions& options) {
  if (options.mlp_tiles() > 1 && config.experts.layers() > 0) {
    throw ConfigError(refusal_message(Refused::tiled_mlp_of_experts));
  }
}

// Computes models of families only.
const ModelConfig& of_a_family(const ModelConfig& config) {
  if (config.module.empty()) return config;
  throw ConfigError(
      fmt::format("{} is a network of a Python program (model_type {}), which alone can compute it; use "
                  "concord.train(model=...) there",
                  config.architecture, config.model_type));
}

ParameterPlanOptions plan_options(const ModelArgs& args, const RankLayout& layout, bool borrows_embedding,
                                  const AdapterModules* adapter) {
  return {.tp = layout.tp(),
          .ep = layout.ep(),
          .etp = layout.etp(),
          .sequence_parallel = args.options.sequence_parallel,
          .make_vocab_size_divisible_by = args.options.make_vocab_size_divisible_by,
          .mlp_tiles = args.options.mlp_tiles(),
          .borrows_embedding = borrows_embedding,
          .adapter = adapter};
}

Parameter make_parameter(const ParameterPlan& plan, const ShardPlace& place, at::TensorOptions options) {
  Parameter parameter{.spec = plan.spec, .init = plan.init, .value = {}};
  if (plan.buffer) options = options.dtype(at::kFloat);
  parameter.value = at::empty(local_shape(plan.spec, place), options).requires_grad_(!plan.buffer && !plan.frozen);
  parameter.uses = plan.uses;
  parameter.partial_over_tp = plan.partial_over_tp;
  parameter.shared_embedding = plan.shared_embedding;
  parameter.expert = plan.expert;
  parameter.buffer = plan.buffer;
  parameter.frozen = plan.frozen;
  parameter.linear = plan.linear;
  parameter.adapter = plan.adapter;
  parameter.row_norms = {plan.norms_of, plan.first_row};
  return parameter;
}

}  // namespace

ModelChunk::ModelChunk(const ModelConfig& config, const ModelArgs& args, const StageLayers& layers,
                       ParallelContext& context, Parameter* borrowed_embedding)
    : config_(of_a_family(config)),
      args_(args),
      layers_(layers),
      context_(context),
      dtype_(type_of(config, args)),
      is_own_(false),
      parts_(std::make_unique<Parts>()) {
  check_args(args);
  check_tiles(config, args.options);
  if (args.adapter) parts_->layers.adapter = std::make_shared<const AdapterModules>(*args.adapter);
  make_parameters(plan_parameters(
      config, layers,
      plan_options(args, context.layout(), borrowed_embedding != nullptr, parts_->layers.adapter.get())));
  Parts& parts = *parts_;
  const auto& find = parts.layers.find;
  if (args.options.fp8.is_on()) parts.fp8.emplace(args.options.fp8, context.torch_device());
  check_delta(config, parts.layers);
  check_heads_of_ranks(config, parts.layers);
  check_vision(config, layers);
  if (config.vision.in_use && layers.embedding) parts.tower.emplace(parts.layers);
  router_losses_ = router_losses(args.options.moe, config.experts);
  check_experts(config, args.options.moe, parts.layers);
  parts.runs = recompute_plan(args.options.recompute, layers.layers);
  offload_inputs();
  for (int64_t i = 0; i < layers.layers; ++i) parts.blocks.emplace_back(parts.layers, layers.first_layer + i);
  if (borrowed_embedding != nullptr) {  // this rank has both ends of the model
    borrowed_embedding->uses = 1 + output_uses_of_embedding(config);
    borrowed_embedding->shared_embedding = false;
  }
  Parameter* const embedding = borrowed_embedding ? borrowed_embedding : find("model.embed_tokens.weight");
  if (layers.embedding || (layers.loss && config.mtp_layers > 0)) parts.embedding = embedding;
  if (!layers.loss) return;
  for (int64_t i = 0; i < config.mtp_layers; ++i) parts.mtp.emplace_back(parts.layers, config.num_hidden_layers + i);
  parts.norm = find("model.norm.weight");
  if (config.is_reward_model) {
    parts.score = find("score.weight");
    return;
  }
  parts.output.emplace(parts.layers, config.tie_word_embeddings ? *embedding : *find("lm_head.weight"), args_.options);
}

ModelChunk::ModelChunk(const ModelConfig& config, const ModelArgs& args, const StageLayers& layers,
                       ParallelContext& context, const std::vector<ParameterPlan>& plans)
    : config_(config),
      args_(args),
      layers_(layers),
      context_(context),
      dtype_(type_of(config, args)),
      is_own_(true),
      parts_(std::make_unique<Parts>()) {
  check_args(args);
  if (args.options.fp8.is_on()) {
    throw ConfigError(refusal_message(Refused::fp8_of_custom_model,
                                      fmt::format("fp8 {} with a custom model", name_of(args.options.fp8.format))));
  }
  make_parameters(plans);
}

ModelChunk::~ModelChunk() = default;

// A stage without the embedding receives its input, which the pipeline holds until backward.
void ModelChunk::offload_inputs() {
  const std::vector<LayerRun>& runs = parts_->runs;
  const auto moves = activation_moves(runs, args_.options.offload, /*input_stays=*/!layers_.embedding);
  if (moves.empty()) return;
  if (config_.vision.in_use && !config_.vision.deepstack.empty()) {
    throw ConfigError(
        fmt::format("cpu_offloading is on with images, whose features several layers of this {} model take as inputs; "
                    "must be off",
                    config_.model_type));
  }
  parts_->offload.emplace(context_.device(), moves, static_cast<int64_t>(runs.size()));
}

ActivationOffload::Traffic ModelChunk::offload_traffic() const {
  return parts_->offload ? parts_->offload->traffic() : ActivationOffload::Traffic{};
}

void ModelChunk::make_parameters(const std::vector<ParameterPlan>& plans) {
  const ShardPlace place = shard_place(context_.layout(), context_.rank());
  const auto options = at::TensorOptions(dtype_).device(context_.torch_device());
  for (const ParameterPlan& plan : plans) parameters_.push_back(make_parameter(plan, place, options));
  const auto find = [this](const std::string& name) {
    const auto found =
        std::find_if(parameters_.begin(), parameters_.end(), [&](const Parameter& p) { return p.spec.name == name; });
    return found == parameters_.end() ? nullptr : &*found;
  };
  parts_->layers = {.config = config_,
                    .recompute = args_.options.recompute,
                    .mlp_tiles = args_.options.mlp_tiles(),
                    .moe = args_.options.moe,
                    .sequence_parallel = args_.options.sequence_parallel,
                    .cp_comm_type = args_.options.cp_comm_type,
                    .tp = &context_.group(GroupKind::tp),
                    .cp = &context_.group(GroupKind::cp),
                    .tp_cp = &context_.group(GroupKind::tp_cp),
                    .dp_cp = &context_.group(GroupKind::dp_cp),
                    .etp = &context_.group(GroupKind::etp),
                    .ep = &context_.group(GroupKind::ep),
                    .tp_ep = &context_.group(GroupKind::tp_ep),
                    .rng = &context_.rng(),
                    .adapter = parts_->layers.adapter,
                    .add_fp8 = [this](const std::string& weight) { return add_fp8(weight); },
                    .find = find};
}

const Parameter& ModelChunk::parameter(const std::string& name) const {
  if (const Parameter* found = parts_->layers.find(name)) return *found;
  throw ConfigError(fmt::format("this stage of the model has no parameter {}", name));
}

void ModelChunk::refuse_generation() const {
  if (is_own_) throw ConfigError("a model of one's own can be trained, but not generate text; remove sample_prompts");
  if (config_.is_reward_model) throw ConfigError("this is a reward model: it scores texts and cannot continue them");
}

Parameter* ModelChunk::embedding() { return layers_.embedding ? parts_->embedding : nullptr; }

bool ModelChunk::passes_expert_counts() const {
  const bool is_whole = layers_.embedding && layers_.loss;
  return !is_whole && config_.experts.layers() > 0 && router_losses_.balancing == Balancing::pooled &&
         router_losses_.balances();
}

Fp8Layer* ModelChunk::add_fp8(const std::string& weight) {
  if (!parts_->fp8) return nullptr;
  const auto is_of = [&](int64_t layer) { return weight.rfind(fmt::format("model.layers.{}.", layer), 0) == 0; };
  const bool at_an_end = is_of(0) || is_of(config_.num_hidden_layers - 1);
  return args_.options.fp8.first_last_layers_bf16 && at_an_end ? nullptr : parts_->fp8->add(weight);
}

void ModelChunk::forget_fp8_weights() {
  if (parts_->fp8) parts_->fp8->forget_weights();
}

void ModelChunk::end_fp8_step(bool updated) {
  if (parts_->fp8) parts_->fp8->end_step(updated, context_.group(GroupKind::tp_dp_cp));
}

bool ModelChunk::has_fp8_history() const { return parts_->fp8 && parts_->fp8->has_history(); }

Fp8Layers* ModelChunk::fp8_layers() { return parts_->fp8 ? &*parts_->fp8 : nullptr; }

void ModelChunk::initialise(Which which) {
  const ShardPlace place = shard_place(context_.layout(), context_.rank());
  for (Parameter& parameter : parameters_) {
    if (which == Which::adapter && !parameter.adapter) continue;
    if (which == Which::score && parameter.spec.name != "score.weight") continue;
    initialise_weights(parameter.value, parameter.spec, place, parameter.init, args_.seed, context_.device());
  }
  if (which == Which::score) return;
  for (Parameter& parameter : parameters_) begin_as_norms(parameter);
}

void ModelChunk::begin_as_norms(Parameter& parameter) const {
  const ParameterRows& rows = parameter.row_norms;
  if (rows.of.empty()) return;
  const at::NoGradGuard no_grad;
  const Parameter& weight = *parts_->layers.find(rows.of);
  const Tensor own = weight.values().narrow(0, rows.first, parameter.value.size(0));
  parameter.value.copy_(row_norms(own, weight.spec.dims[1].cut ? parts_->layers.tp : nullptr));
}

void ModelChunk::update_expert_bias(std::span<const std::shared_ptr<RouterRecord>> records, double rate) {
  const at::NoGradGuard no_grad;
  std::vector<Tensor> biases, counts;
  const auto all = static_cast<int64_t>(config_.num_hidden_layers + config_.mtp_layers);
  for (int64_t i = 0; i < all; ++i) {
    const Parameter* bias = parts_->layers.find(fmt::format("model.layers.{}.mlp.router.bias", i));
    if (bias == nullptr || bias->frozen) continue;
    biases.push_back(bias->value);
    counts.push_back(at::zeros_like(bias->value));
    for (const auto& record : records) {
      if (!record) continue;  // the user's forward step did not run the chunk
      const Tensor& chosen = record->layers[static_cast<size_t>(i)].chosen;
      if (!chosen.defined()) continue;
      counts.back().add_(chosen.sum(0));
      const Tensor& dropped = record->layers[static_cast<size_t>(i)].dropped;
      if (dropped.defined()) counts.back().sub_(dropped);
    }
  }
  if (biases.empty()) return;
  context_.group(GroupKind::dp_cp).all_reduce_coalesced(counts).wait();
  if (parts_->layers.sequence_parallel) parts_->layers.tp->all_reduce_coalesced(counts).wait();
  for (size_t i = 0; i < biases.size(); ++i) biases[i].add_((counts[i].mean() - counts[i]).sign(), rate);
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

}  // namespace concord
