#include "core/models/model_chunk.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/base/config_error.h"
#include "core/models/adapters/layer_adapter.h"
#include "core/models/layers/block.h"
#include "core/models/layers/kv_cache.h"
#include "core/models/layers/layer_context.h"
#include "core/models/layers/mtp_layer.h"
#include "core/models/layers/output_layer.h"
#include "core/models/layers/router_record.h"
#include "core/models/parameter_plan.h"
#include "core/models/precision/fp8_layers.h"
#include "core/models/token_slices.h"
#include "core/ops/attention/rope_angles.h"
#include "core/ops/gated_activation.h"
#include "core/ops/linear.h"
#include "core/ops/loss/cross_entropy.h"
#include "core/ops/loss/vocab_share.h"
#include "core/ops/visit_type.h"
#include "core/parallel/mappings.h"
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
  for (const double p : {args.options.attention_dropout, args.options.hidden_dropout}) {
    if (p < 1) continue;
    throw ConfigError(fmt::format("a dropout probability is {:g}; must be >= 0 and < 1", p));
  }
}

// Ranks of both kinds have heads of their own.
void check_delta(const ModelConfig& config, const LayerContext& context) {
  const int64_t tp = context.tp->size(), cp = context.cp->size();
  if (config.delta.count() == 0 || config.delta.key_heads % (tp * cp) == 0) return;
  throw ConfigError(
      fmt::format("linear_num_key_heads {} is not divisible by tensor_model_parallel_size {} times "
                  "context_parallel_size {}: ranks of both have heads of linear attention of their own; choose sizes "
                  "whose product divides it",
                  config.delta.key_heads, tp, cp));
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
  if (moe.token_drop_policy != "probs" && moe.token_drop_policy != "position") {
    throw ConfigError(fmt::format("moe_token_drop_policy is '{}'; must be probs or position", moe.token_drop_policy));
  }
}

ParameterPlanOptions plan_options(const ModelArgs& args, const RankLayout& layout, bool borrows_embedding,
                                  const AdapterModules* adapter) {
  return {.tp = layout.tp(),
          .ep = layout.ep(),
          .etp = layout.etp(),
          .sequence_parallel = args.options.sequence_parallel,
          .make_vocab_size_divisible_by = args.options.make_vocab_size_divisible_by,
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

// What forward walks over. Lives as long as the chunk, at one address: the backward of recomputed layers refers to it.
struct ModelChunk::Parts {
  std::optional<Fp8Layers> fp8;
  LayerContext layers;
  std::vector<Block> blocks;
  std::vector<MtpLayer> further;  // that predict further tokens; on the last stage
  std::vector<LayerRun> runs;
  Parameter* embedding = nullptr;
  Parameter* norm = nullptr;
  Parameter* score = nullptr;         // of a reward model
  std::optional<OutputLayer> output;  // of others
  LayerAngles angles;                 // of the last sequences that were not packed
  int64_t tokens_of_angles = 0;       // how long these were; 0: there were none
};

ModelChunk::ModelChunk(const ModelConfig& config, const ModelArgs& args, const StageLayers& layers,
                       ParallelContext& context, Parameter* borrowed_embedding)
    : config_(config),
      args_(args),
      layers_(layers),
      context_(context),
      dtype_(type_of(config, args)),
      is_own_(false),
      parts_(std::make_unique<Parts>()) {
  check_args(args);
  if (args.adapter) parts_->layers.adapter = std::make_shared<const AdapterModules>(*args.adapter);
  make_parameters(plan_parameters(
      config, layers,
      plan_options(args, context.layout(), borrowed_embedding != nullptr, parts_->layers.adapter.get())));
  Parts& parts = *parts_;
  const auto& find = parts.layers.find;
  if (args.options.fp8.is_on()) parts.fp8.emplace(args.options.fp8, context.torch_device());
  check_delta(config, parts.layers);
  router_losses_ = router_losses(args.options.moe, config.experts);
  check_experts(config, args.options.moe, parts.layers);
  begin_step();
  parts.runs = recompute_plan(args.options.recompute, layers.layers);
  for (int64_t i = 0; i < layers.layers; ++i) parts.blocks.emplace_back(parts.layers, layers.first_layer + i);
  if (borrowed_embedding != nullptr) {  // this rank has both ends of the model
    borrowed_embedding->uses = 1 + output_uses_of_embedding(config);
    borrowed_embedding->shared_embedding = false;
  }
  Parameter* const embedding = borrowed_embedding ? borrowed_embedding : find("model.embed_tokens.weight");
  if (layers.embedding || (layers.loss && config.mtp_layers > 0)) parts.embedding = embedding;
  if (!layers.loss) return;
  for (int64_t i = 0; i < config.mtp_layers; ++i)
    parts.further.emplace_back(parts.layers, config.num_hidden_layers + i);
  parts.norm = find("model.norm.weight");
  if (config.scores) {
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
    throw ConfigError(
        fmt::format("fp8 {}: 8-bit floats are of the layers of known models; set fp8 to none for a model "
                    "of one's own",
                    args.options.fp8.format));
  }
  make_parameters(plans);
}

ModelChunk::~ModelChunk() = default;

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
                    .moe = args_.options.moe,
                    .sequence_parallel = args_.options.sequence_parallel,
                    .gathers_keys = args_.options.cp_comm_type == "all_gather",
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
  if (config_.scores) throw ConfigError("this is a reward model: it scores texts and cannot continue them");
}

Parameter* ModelChunk::embedding() { return layers_.embedding ? parts_->embedding : nullptr; }

void ModelChunk::begin_step() {
  if (router_losses_.balancing != Balancing::global_aux) return;
  counts_of_step_ = std::make_shared<CountsOfStep>();
  counts_of_step_->layers.resize(static_cast<size_t>(config_.num_hidden_layers + config_.mtp_layers));
}

bool ModelChunk::passes_expert_counts() const {
  const bool is_whole = layers_.embedding && layers_.loss;
  return !is_whole && config_.experts.layers() > 0 && router_losses_.balancing == Balancing::pooled &&
         router_losses_.balances();
}

void ModelChunk::turn_adapter(bool on) { parts_->layers.adapter_off = !on; }

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
      if (!record) continue;  // of a forward step that does not run the chunk
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

// ---------------------------------------------------------------------------------------------------------- forward
// Shapes in names: p, s, b, h as in layer_context.h; v this rank's rows of the padded vocabulary.

namespace {

LayerAngles layer_angles(const ModelConfig& config, int64_t length, const Tensor& positions, c10::ScalarType dtype) {
  const RopeAngles all = rope_angles(rope_frequencies(config.rope, length), positions);
  LayerAngles angles{all.cos, all.sin, {}, {}};
  if (config.window_rope) {
    const RopeAngles windowed = rope_angles(rope_frequencies(*config.window_rope, length), positions);
    angles.window_cos = windowed.cos;
    angles.window_sin = windowed.sin;
  }
  const auto type = dtype == at::kDouble ? at::kDouble : at::kFloat;
  return angles.each([&](const Tensor& x) { return x.to(type); });
}

}  // namespace

// Those of whole sequences are kept for the next micro-batch: computing them begins with a copy to the device, which
// the host waits for.
LayerAngles ModelChunk::angles_of(const MicroBatch& batch) const {
  Parts& parts = *parts_;
  const int64_t tokens = batch.input_ids.size(1);
  const bool is_whole = !batch.position_ids.defined() && batch.cu_seqlens.empty();
  if (is_whole && parts.tokens_of_angles == tokens) return parts.angles;
  const TokenPositions positions = token_positions(batch, *parts.layers.cp, context_.torch_device());
  const LayerAngles angles = layer_angles(config_, positions.length, positions.own, dtype_);
  if (!is_whole) return angles;
  parts.tokens_of_angles = tokens;
  parts.angles = angles;
  return angles;
}

std::optional<LayerDropout> ModelChunk::dropout_of(const MicroBatch& batch) const {
  const ModelOptions& options = args_.options;
  const double attention = options.attention_dropout < 0 ? config_.attention_dropout : options.attention_dropout;
  if (attention == 0 && options.hidden_dropout == 0) return {};
  const LayerContext& layers = parts_->layers;
  std::vector<TokenRun> tokens{{0, batch.input_ids.size(1)}};
  if (layers.cp->size() > 1) tokens = context_slices(sequence_lengths(batch), layers.cp->size(), layers.cp->rank());
  if (layers.sequence_parallel) {
    const int64_t own = batch.input_ids.size(1) / layers.cp->size() / layers.tp->size();
    tokens = part_of_runs(tokens, layers.tp->rank() * own, own);
  }
  return LayerDropout{.hidden = options.hidden_dropout,
                      .attention = attention,
                      .key = (static_cast<uint64_t>(args_.seed) << 32) + static_cast<uint64_t>(batch.draws->step),
                      .first_row = batch.draws->first_row,
                      .tokens = std::move(tokens)};
}

SharedInputs ModelChunk::layer_inputs(const MicroBatch& batch) const {
  auto inputs = std::make_shared<LayerInputs>();
  static_cast<LayerAngles&>(*inputs) = angles_of(batch);
  inputs->cu_seqlens = batch.cu_seqlens;
  if (batch.draws && c10::GradMode::is_enabled()) inputs->dropout = dropout_of(batch);
  if (config_.experts.layers() > 0 && c10::GradMode::is_enabled()) {
    const ExpertConfig& experts = config_.experts;
    inputs->router = std::make_shared<RouterRecord>(RouterRecord{
        .losses = router_losses_,
        .weight = router_loss_weight_,
        .rows = batch.input_ids.size(0),
        .row_tokens = batch.input_ids.size(1),
        .experts = experts.num_experts,
        .choices = experts.num_experts_per_tok,
        .sparse_layers = experts.layers(),
        .layers = std::vector<RouterRecord::Layer>(static_cast<size_t>(config_.num_hidden_layers + config_.mtp_layers)),
        .step = counts_of_step_,
        .chosen_in_all_layers = {}});
  }
  return inputs;
}

Tensor ModelChunk::embed(const Tensor& ids_sb) const {
  const Parameter& table = *parts_->embedding;
  const LayerContext& layers = parts_->layers;
  const Tensor x_pbh = vocab_parallel_embedding(table.used(), ids_sb, config_.vocab_size, *layers.tp,
                                                layers.sequence_parallel, table.grad_sink());
  double multiplier = config_.embedding_multiplier;
  if (config_.rounds_embedding_multiplier) multiplier = at::scalar_tensor(multiplier, dtype_).item<double>();
  return multiplier == 1 ? x_pbh : x_pbh.mul(multiplier);
}

Tensor ModelChunk::run_layers(const LayerRun& run, const Tensor& x_pbh, const SharedInputs& inputs) const {
  Residual stream{x_pbh};
  for (int64_t i = run.begin; i < run.end; ++i) {
    stream = parts_->blocks[static_cast<size_t>(i)].forward(stream, inputs);
    if (!observer_) continue;
    stream = {stream.sum(parts_->layers)};
    observer_(fmt::format("layers.{}", layers_.first_layer + i), stream.x_pbh);
  }
  return stream.sum(parts_->layers);
}

Tensor ModelChunk::last_norm(const Tensor& x_pbh) const { return normed(x_pbh, parts_->norm, parts_->layers); }

// [s, b], on the device.
Tensor ModelChunk::own_labels(const MicroBatch& batch) const {
  return own_tokens(batch.labels, batch).t().contiguous().to(context_.torch_device());
}

// Each tp rank has the tokens that it has between layers. The sum of parts that are 0 elsewhere is the whole, and its
// gradient, which is the same on all ranks, goes to each part as it is.
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

Tensor ModelChunk::last_losses(const Tensor& x_pbh, const MicroBatch& batch, const SharedInputs& inputs) {
  const Tensor normed_pbh = last_norm(x_pbh);
  if (observer_) observer_("norm", normed_pbh);
  const std::function<void(const Tensor&)> seen = [this](const Tensor& logits_sbv) { observer_("logits", logits_sbv); };
  const Tensor losses_bs = parts_->output->losses(
      normed_pbh, own_labels(batch), std::exchange(expected_loss_grad_, {}),
      {.statistics = measures_tokens_ ? &token_statistics_ : nullptr, .seen = observer_ ? &seen : nullptr});
  if (parts_->further.empty() || !c10::GradMode::is_enabled()) return losses_bs;
  const Tensor further_bs = further_losses(normed_pbh, batch, inputs);
  return losses_bs + (further_bs - further_bs.detach());
}

// Megatron's loss is factor / D sum_k mean_k, the mean over the n_k tokens that depth k predicts. What the sum over
// tokens is divided by is up to the caller: the n_0 counted tokens of a micro-batch, or those of a step. So a token of
// depth k counts n_0 / n_k, as Megatron has it for both.
Tensor ModelChunk::further_losses(Tensor hidden_pbh, MicroBatch batch, const SharedInputs& inputs) {
  const bool again = args_.options.recompute.granularity == "full";
  const double factor = args_.options.mtp.loss_scaling_factor / static_cast<double>(config_.mtp_layers);
  const auto counted = [&] { return batch.labels.ne(kIgnoredLabel).sum().to(context_.torch_device()).to(at::kDouble); };
  const Tensor first = counted();
  Tensor sum_bs;
  std::vector<Tensor> logged;
  for (const MtpLayer& layer : parts_->further) {
    batch.labels = labels_that_follow(batch.labels, batch.cu_seqlens);
    batch.input_ids =
        labels_that_follow(batch.input_ids, batch.cu_seqlens).clamp_min(0);  // the last ones predict nothing
    const Tensor ids_sb = own_tokens(batch.input_ids, batch).t().contiguous().to(context_.torch_device());
    const auto run = [&layer, inputs](const std::vector<Tensor>& x) {
      return std::vector{layer.forward(x[0], x[1], inputs)};
    };
    const std::vector<Tensor> given{embed(ids_sb), hidden_pbh};
    hidden_pbh = (again ? recompute(run, given, *parts_->layers.rng) : run(given))[0];
    const Tensor losses_bs = parts_->output->losses(hidden_pbh, own_labels(batch), {}, {});
    const Tensor share = (first / counted().clamp_min(1) * factor).to(losses_bs.scalar_type());
    sum_bs = sum_bs.defined() ? sum_bs + losses_bs * share : losses_bs * share;
    logged.push_back(losses_bs.detach().sum().to(at::kFloat));
    logged.push_back(own_labels(batch).ne(kIgnoredLabel).sum().to(at::kFloat));
  }
  further_losses_ = at::stack(logged).view({-1, 2});
  return sum_bs;
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
  if (parts_->fp8) parts_->fp8->count_inputs(c10::GradMode::is_enabled());
  const SharedInputs inputs = layer_inputs(batch);
  const auto own_ids = [&] { return own_tokens(batch.input_ids, batch).t().contiguous().to(context_.torch_device()); };
  Tensor x_pbh = layers_.embedding ? embed(own_ids()) : hidden;
  if (inputs->dropout && layers_.embedding) x_pbh = hidden_dropout(x_pbh, *inputs->dropout, kEmbeddingSite);
  if (observer_ && layers_.embedding) observer_("embedding", x_pbh);
  for (const LayerRun& run : parts_->runs) {
    x_pbh = recompute_if(run.recomputed, parts_->layers, x_pbh,
                         [this, run, inputs](const Tensor& input_pbh) { return run_layers(run, input_pbh, inputs); });
  }
  router_record_ = inputs->router;
  if (!layers_.loss) return x_pbh;
  return config_.scores ? token_scores(x_pbh) : last_losses(x_pbh, batch, inputs);
}

// ------------------------------------------------------------------------------------------------------- generation

namespace {

// Between layers every tp rank has all tokens: a step has one per row, which cannot be split.
class Undivided {
 public:
  explicit Undivided(LayerContext& layers) : layers_(layers), before_(layers.sequence_parallel) {
    layers_.sequence_parallel = false;
  }
  ~Undivided() { layers_.sequence_parallel = before_; }
  Undivided(const Undivided&) = delete;
  Undivided& operator=(const Undivided&) = delete;

 private:
  LayerContext& layers_;
  bool before_;
};

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
  const Undivided undivided(parts_->layers);
  if (parts_->fp8) parts_->fp8->count_inputs(false);
  cache.begin(tokens);
  const auto inputs = std::make_shared<LayerInputs>();
  static_cast<LayerAngles&>(*inputs) = cache.angles();
  inputs->cache = &cache;
  Residual stream{layers_.embedding ? embed(tokens.ids.t().contiguous()) : hidden};
  for (const Block& block : parts_->blocks) stream = block.forward(stream, inputs);
  cache.end();
  Tensor x_sbh = stream.sum(parts_->layers);
  if (!layers_.loss) return x_sbh;
  if (x_sbh.size(0) > 1) {  // of each row the last that is no padding
    const Tensor row_b = at::arange(x_sbh.size(1), tokens.counts.options());
    x_sbh = at::index(x_sbh, {tokens.counts - 1, row_b}).unsqueeze(0);
  }
  return parts_->output->logits(last_norm(x_sbh)).squeeze(0);
}

}  // namespace concord
