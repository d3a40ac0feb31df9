#include <algorithm>
#include <numeric>

#include "core/base/config_error.h"
#include "core/parallel/memory/activation_memory.h"
#include "core/parallel/padded_vocabulary.h"
#include "trainer/planning/memory_plan_parts.h"

namespace concord {
namespace {

// Sizes of the layers of a chunk. Layers that differ, dense ones and those with experts, have the mean of their sizes.
struct ChunkSizes {
  LayerSizes layer;
  bool is_dense = true;  // the formula of activations holds
};

// Columns of a layer's MLP that a token meets: those of its experts and the shared one. Their dispatched inputs
// and outputs, of the hidden size, count as columns too: the formula has three tensors of these.
int64_t inner_of(const ModelConfig& config, int64_t layer) {
  const ExpertConfig& experts = config.experts;
  if (!experts.has_layer(layer)) return config.intermediate_size;
  const int64_t dispatched = 2 * experts.num_experts_per_tok * config.hidden_size / 3;
  return experts.num_experts_per_tok * experts.intermediate_size + experts.shared_intermediate_size + dispatched;
}

ChunkSizes sizes_of(const TrainingPlan& plan, const RankLayout& layout, const StageLayers& stage, int64_t tokens) {
  const ModelConfig& config = plan.config;
  ChunkSizes sizes;
  int64_t inner = 0, heads = 0, kv_heads = 0;
  for (int64_t i = 0; i < stage.layers; ++i) {
    const int64_t layer = stage.first_layer + i;
    const bool is_delta = config.delta.has_layer(layer), is_latent = config.latent.used();
    inner += inner_of(config, layer);
    heads += is_delta ? config.delta.value_heads : config.num_attention_heads;
    kv_heads += is_delta ? config.delta.key_heads : is_latent ? config.num_attention_heads : config.num_key_value_heads;
    sizes.is_dense = sizes.is_dense && !is_delta && !is_latent && !config.experts.has_layer(layer);
  }
  const int64_t layers = std::max<int64_t>(1, stage.layers);
  sizes.layer = {.tokens = tokens,
                 .hidden = config.hidden_size,
                 .heads = heads / layers,
                 .kv_heads = std::max(kv_heads / layers, layout.tp()),
                 .head_dim = config.head_dim,
                 .inner = inner / layers,
                 .mlp_tiles = plan.arguments.model_options.mlp_tiles(),
                 .element_bytes = model_type(plan.arguments).bytes(),
                 .tp = layout.tp(),
                 .sequence_parallel = plan.arguments.model_options.sequence_parallel};
  return sizes;
}

// Returns which part of |saved| is kept for certain: all that dense layers save if all weights are trained, what
// adapters on all linear layers need of their inputs, else nothing is certain.
SavedActivations certain(const TrainingPlan& plan, const ChunkSizes& sizes, const SavedActivations& saved) {
  const TrainingArguments& a = plan.arguments;
  const bool is_simple =
      sizes.is_dense && !a.model_options.fp8.is_on() && a.groups.freeze.empty() && plan.config.mtp_layers == 0;
  if (!is_simple) return {};
  if (!plan.adapter) return saved;
  const bool adapts_all = plan.adapter->target_pattern.empty() &&
                          a.finetuning.target == std::vector<std::string>{kAllLinear} &&
                          plan.adapter->exclude_modules.empty() && plan.adapter_folder.empty();
  if (!adapts_all || a.model_options.recompute.granularity != RecomputeGranularity::none) return {};
  return {.attention = saved.attention, .mlp = saved.mlp};
}

// FP8 layers save their inputs in a byte per element: norms' outputs and, of the MLP's three tensors, one.
SavedActivations in_fp8(const SavedActivations& saved, int64_t element_bytes) {
  return {.inputs = saved.inputs,
          .norms = saved.norms / element_bytes,
          .attention = saved.attention,
          .mlp = saved.mlp * (2 * element_bytes + 1) / (3 * element_bytes)};
}

class ActivationPlanner {
 public:
  ActivationPlanner(const TrainingPlan& plan, const RankLayout& layout, int64_t rank, const MicroBatchShape& batch,
                    MemoryPlan* memory)
      : plan_(plan), a_(plan.arguments), layout_(layout), batch_(batch), type_(model_type(a_)), memory_(memory) {
    tokens_ = batch.rows * batch.tokens / layout.cp();
    rank_in_pipeline_ = static_cast<size_t>(layout.coordinates(rank).pp);
    for (const size_t stage : stages_of_rank(plan, layout, rank)) stages_.push_back(plan.stages[stage]);
    own_ = a_.model_options.sequence_parallel ? tokens_ / layout.tp() : tokens_;
  }

  void run() {
    SavedActivations saved, sure;
    int64_t again = 0, least = INT64_MAX;
    for (const StageLayers& stage : stages_) {
      const ChunkSizes sizes = sizes_of(plan_, layout_, stage, tokens_);
      const ActivationBytes bytes = activation_bytes(sizes.layer, a_.model_options.recompute, stage.layers);
      const SavedActivations kept = a_.model_options.fp8.is_on() ? in_fp8(bytes.saved, type_.bytes()) : bytes.saved;
      saved += kept;
      again = std::max(again, bytes.peak - bytes.kept);
      const SavedActivations certain_part = certain(plan_, sizes, bytes.saved);
      if (certain_part.sum() < least) least = certain_part.sum(), sure = certain_part;
      if (stage.layers > 0) place_layer_work(sizes.layer);
    }
    if (!batch_.has_full_rows) sure = {};
    place_saved(saved, sure);
    add(TensorClass::recomputed, again, Moves::layer);
    add(TensorClass::activation_gradients, work_, Moves::layer);
    if (stages_.back().loss) place_loss();
    place_communication();
  }

 private:
  void add(TensorClass kind, int64_t bytes, Moves moves, int64_t least = 0) {
    if (bytes > 0) memory_->add({kind, type_.name, Place::device, moves, bytes, least});
  }

  // A pipeline holds the activations of several micro-batches, in units of one through one chunk.
  void place_saved(const SavedActivations& saved, const SavedActivations& sure) {
    const int64_t held = peak_activations(plan_.schedule)[rank_in_pipeline_];
    const auto chunks = static_cast<int64_t>(stages_.size());
    const auto all = [&](int64_t bytes) { return bytes * held / chunks; };
    add(TensorClass::layer_inputs, all(saved.inputs), Moves::forward, sure.inputs);
    add(TensorClass::norm_outputs, all(saved.norms), Moves::forward, sure.norms);
    add(TensorClass::attention, all(saved.attention), Moves::forward, sure.attention);
    add(TensorClass::mlp, all(saved.mlp), Moves::forward, sure.mlp);
  }

  // In a layer's backward most is in use when the product of gate and up has been freed, but its gradient and those of
  // gate and up exist, next to the gradient of the residual stream. What is recomputed as a whole has an output too.
  void place_layer_work(const LayerSizes& sizes) {
    const RecomputeArgs& recompute = a_.model_options.recompute;
    const int64_t inner = sizes.tokens / sizes.mlp_tiles * sizes.inner / sizes.tp * sizes.element_bytes;
    const int64_t hidden = own_ * sizes.hidden * sizes.element_bytes;
    const bool has_output = recompute.granularity == RecomputeGranularity::full || sizes.mlp_tiles > 1 ||
                            recomputes_module(recompute, RecomputeModule::mlp);
    work_ = std::max(work_, 2 * inner + hidden + (has_output ? hidden : 0));
  }

  // The logits, which their gradients overwrite; the last norm's input and output, and the gradient of the output.
  void place_loss() {
    const int64_t hidden = own_ * plan_.config.hidden_size * type_.bytes();
    if (!plan_.config.is_reward_model) {
      const int64_t columns =
          padded_vocabulary(plan_.config.vocab_size, layout_.tp(), a_.model_options.make_vocab_size_divisible_by) /
          layout_.tp();
      add(TensorClass::logits, tokens_of_loss() * columns * type_.bytes(), Moves::loss);
    }
    add(TensorClass::layer_inputs, hidden, Moves::loss);
    add(TensorClass::norm_outputs, hidden, Moves::loss);
    add(TensorClass::activation_gradients, hidden, Moves::loss);
  }

  // Losses of pairs need the logits of all tokens; so do capped ones (OutputLayer::computes_chunks_once).
  int64_t tokens_of_loss() const {
    const ModelOptions& options = a_.model_options;
    const bool in_chunks = !a_.preference.learns_pairs() && plan_.config.final_logit_softcapping == 0;
    const int64_t chunk = options.loss_chunk_size >= 0 ? options.loss_chunk_size
                          : in_chunks                  ? options.free_loss_chunk
                                                       : 0;
    return chunk > 0 ? std::min(chunk, tokens_) : tokens_;
  }

  // A tensor between layers that is gathered from the tensor-parallel ranks, one received from the previous stage and
  // one from the next, and with context parallelism the keys and values of two neighbours.
  void place_communication() {
    const int64_t hidden = plan_.config.hidden_size * type_.bytes();
    int64_t bytes = a_.model_options.sequence_parallel && layout_.tp() > 1 ? tokens_ * hidden : 0;
    if (layout_.pp() > 1) bytes += 2 * own_ * hidden;
    const int64_t keys = plan_.config.kv_heads_of_rank(layout_.tp()) * plan_.config.head_dim * type_.bytes();
    if (layout_.cp() > 1) bytes += 4 * tokens_ * keys;
    if (bytes > 0) memory_->add({TensorClass::communication, type_.name, Place::device, Moves::forward, bytes, 0});
  }

  const TrainingPlan& plan_;
  const TrainingArguments& a_;
  const RankLayout& layout_;
  const MicroBatchShape& batch_;
  const ModelType type_;
  MemoryPlan* const memory_;
  int64_t tokens_ = 0;  // tokens of a micro-batch on this rank
  int64_t own_ = 0;     // tokens between layers, a part of these under sequence parallelism
  int64_t work_ = 0;    // bytes of gradients in a layer's backward
  size_t rank_in_pipeline_ = 0;
  std::vector<StageLayers> stages_;
};

}  // namespace

void place_activations(const TrainingPlan& plan, const RankLayout& layout, int64_t rank, const MicroBatchShape& batch,
                       MemoryPlan* memory) {
  if (batch.tokens > 0) ActivationPlanner(plan, layout, rank, batch, memory).run();
}

}  // namespace concord
