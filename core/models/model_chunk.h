// The layers of a model that one pipeline stage has, on this rank: the one transformer for all families of
// core/models/config.h. Split over the tensor-parallel group (vocabulary, heads, inner size of the MLP), over tokens by
// context and sequence parallelism; replicated over data parallelism.
//
// Tensors between layers are [S', B, H] (in names pbh, see layer_context.h), tokens first. S' are this rank's tokens:
// S / cp (core/parallel/context_slices.h says which), and S / cp / tp with sequence parallelism. Packed sequences are
// one row, B = 1, S the sum of their lengths.
//
// Gradients: of a loss that is the same on all tp ranks. They arrive in Parameter::value.grad() or its sink, sums over
// this rank's tokens; reducing them over dp_cp, over tp where partial_over_tp says so, and over the embedding group is
// for the finalisation of gradients. Threads: one at a time, the thread that computes; backward runs on the thread of
// autograd. Forward may be called for further micro-batches before the backward of earlier ones.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/mesh/parallel_context.h"
#include "core/models/adapters/adapter_config.h"
#include "core/models/config.h"
#include "core/models/layers/expected_grad.h"
#include "core/models/layers/router_losses.h"
#include "core/models/micro_batch.h"
#include "core/models/model_options.h"
#include "core/models/token_statistics.h"
#include "core/parallel/parameter.h"
#include "core/parallel/recompute.h"
#include "core/schedule/layer_layout.h"

namespace concord {

class Fp8Layer;
class Fp8Layers;
class KvCache;
struct LayerAngles;
struct LayerDropout;
struct LayerInputs;
struct NewTokens;
struct ParameterPlan;
struct RouterRecord;
struct CountsOfStep;

// How a model is run; names are Megatron's and ROLL's where they have them.
struct ModelArgs {
  // Of parameters and of what is between layers: Float, BFloat16, Half or Double. None: as the config says.
  std::optional<c10::ScalarType> dtype = {};
  ModelOptions options = {};
  int64_t seed = 42;  // of the initialisation, positive
  // Low-rank pairs beside layers, which are trained instead of the model's own weights; names as with_targets has them.
  std::optional<AdapterConfig> adapter = {};
  bool scores = false;              // a reward model (ModelConfig::scores), also from a folder that has none
  std::string adapter_folder = {};  // where from_pretrained reads its weights; empty: they are initialised
  // Adapters that from_pretrained adds to the weights before that, in this order.
  std::vector<std::string> merged_adapters = {};
  int64_t quantization_bit =
      0;  // 4: from_pretrained holds frozen weights of linear layers in nf4 (core/ops/precision/nf4.h)
  bool share_reads = false;  // from_pretrained reads each byte once per data-parallel group (HfLoadOptions)
  // The stages of the whole pipeline in the order of the model, pp * vpp of them; empty: distributed evenly.
  std::vector<StageLayers> stages = {};
  Placement placement = Placement::loop;  // which of the stages a rank has
};

// A part's output as it is computed: its name ("embedding", "layers.3", "norm", "logits") and the tensor, of this
// rank's tokens; logits [S / cp, B, columns of this tp rank].
using Observer = std::function<void(const std::string& part, const at::Tensor& output)>;

class ModelChunk {
 public:
  // Allocates the parameters, without values so far, on the context's device. |borrowed_embedding| is
  // that of another chunk of this rank, for a last stage that uses it where both are here; else null. Throws
  // ConfigError, with the numbers, for sizes that do not divide by the layout's. |context| and |borrowed_embedding|
  // have to outlive it.
  ModelChunk(const ModelConfig& config, const ModelArgs& args, const StageLayers& layers, ParallelContext& context,
             Parameter* borrowed_embedding = nullptr);
  virtual ~ModelChunk();
  ModelChunk(const ModelChunk&) = delete;
  ModelChunk& operator=(const ModelChunk&) = delete;

  // |hidden| comes from the previous stage; undefined on the first. Returns the hidden of the next stage, or on the
  // last the loss (of a reward model the score) of each token [B, S / cp], fp32 (fp64 for Double), of this rank's
  // tokens, the same on all tp ranks, 0 where the label is kIgnoredLabel. |batch| is the whole micro-batch on all
  // stages, labels are needed on the last one. Layers that predict further tokens add to the gradient of these losses,
  // not to their values. Throws ConfigError, with the sizes, for a batch that does not fit.
  virtual at::Tensor forward(const at::Tensor& hidden, const MicroBatch& batch);

  // Generation, without autograd (core/models/layers/kv_cache.h): a cache for this chunk's layers, |capacity| tokens in
  // each of |rows| rows. Throws ConfigError for a capacity beyond the model's positions.
  std::unique_ptr<KvCache> make_cache(int64_t rows, int64_t capacity) const;
  // The new tokens of each row after those in |cache|, where they are afterwards. |hidden| as in forward, [S, B, H]:
  // all tp and cp ranks have all tokens. Returns the next stage's hidden, or on the last [B, V of this tp rank], the
  // logits of what follows the last new token of each row.
  at::Tensor decode(const at::Tensor& hidden, const NewTokens& tokens, KvCache& cache);

  const StageLayers& layers() const { return layers_; }
  bool is_first() const { return layers_.embedding; }
  bool is_last() const { return layers_.loss; }

  // In the order of use; addresses stay. A parameter borrowed from another chunk is not among them.
  std::span<Parameter> parameters() { return parameters_; }
  Parameter* embedding();  // the table of the first stage; null elsewhere
  // Fills parameters as their init says: normal(initializer_range), norms 1, biases 0; an adapter as peft does. The
  // same bits under any layout.
  enum class Which { all, adapter, score };
  void initialise(Which which = Which::all);

  // After a step whose micro-batches left |records|: the bias of an expert that had fewer tokens than the mean goes up
  // by |rate|, that of one that had more goes down (DeepSeek-V3, Megatron's moe_router_bias_update_rate). Every rank of
  // the stage calls it; waits for them as Work::wait does. Nothing happens without such biases.
  void update_expert_bias(std::span<const std::shared_ptr<RouterRecord>> records, double rate);

  // 8-bit floats (fp8_layers.h): weights have changed, or may have; a step has ended, on all ranks of the stage.
  // Nothing happens in a model without.
  void forget_fp8_weights();
  void end_fp8_step(bool updated);
  bool has_fp8_history() const;  // see Fp8Layers
  Fp8Layers* fp8_layers();       // null: none

  // What forward takes from the previous stage, for receive buffers.
  std::vector<int64_t> hidden_shape(const MicroBatch& batch) const;
  c10::ScalarType hidden_dtype() const { return dtype_; }
  // Labels of this rank's tokens (its share under context parallelism) that are not ignored.
  int64_t counted_tokens(const MicroBatch& batch) const;
  // |x| [B, S], one value per token of the whole -> [B, S / cp] of this rank's tokens.
  at::Tensor own_tokens(const at::Tensor& x, const MicroBatch& batch) const;

  // Whether later forwards use the adapter, as they do at first. Nothing changes in a model without one; modules that
  // are trained whole are always used.
  void turn_adapter(bool on);

  // Layers with experts, in later forwards: what the losses of their routers are multiplied by (1 at first). They are
  // sums over this rank's tokens of terms that add up to the loss of the micro-batch over its tp and cp ranks, and only
  // have a gradient: forward returns the losses of tokens without them.
  void weigh_router_losses(double weight) { router_loss_weight_ = weight; }
  // Before the first forward of a step: global_aux_loss counts from there.
  void begin_step();
  // Whether what the routers of all stages counted is passed from one to the next, and back (pooled_aux_loss).
  bool passes_expert_counts() const;
  int64_t experts() const { return config_.experts.num_experts; }
  // What the gradient of each token's loss is going to be in the next pass. Saves time, and changes nothing else
  // (output_layer.h).
  void expect_loss_grad(const ExpectedGrad& grad) { expected_loss_grad_ = grad; }
  // What the routers did in the last forward (core/models/layers/router_record.h), once; null if the model has none, or
  // the forward can have no backward.
  std::shared_ptr<RouterRecord> take_router_record() { return std::exchange(router_record_, nullptr); }

  // Whether later forwards of the last stage measure what they make of each token (core/models/token_statistics.h);
  // not so at first, and never of a reward model.
  void measure_tokens(bool on) { measures_tokens_ = on; }
  // What the last forward measured, once.
  std::optional<TokenStatistics> take_token_statistics() { return std::exchange(token_statistics_, std::nullopt); }

  // Of the last forward of the last stage, once: for each depth that predicts further tokens the sum of their losses
  // and how many they are, fp32 [depths, 2] on the device, of this rank's tokens; undefined if there are none.
  at::Tensor take_mtp_losses() { return std::exchange(further_losses_, {}); }

  // Called with the parts' outputs in every later forward (again if a part is recomputed). An empty function removes
  // it.
  void observe(Observer observer) { observer_ = std::move(observer); }

  // Whether the network is a subclass's own.
  bool is_own() const { return is_own_; }

 protected:
  // A network of the caller's own, which overrides forward and has the parameters of |plans|; examples/pretrain is one.
  // It trains, is evaluated and saved as others; make_cache and decode throw ConfigError. Values between stages are of
  // hidden_shape.
  ModelChunk(const ModelConfig& config, const ModelArgs& args, const StageLayers& layers, ParallelContext& context,
             const std::vector<ParameterPlan>& plans);

  const ModelConfig& config() const { return config_; }
  ParallelContext& context() const { return context_; }
  const Parameter& parameter(const std::string& name) const;  // throws ConfigError if there is none
  // What observers of |part| get; "logits" are what compute_accuracy, compute_metrics and do_predict need.
  void observed(const std::string& part, const at::Tensor& output) const {
    if (observer_) observer_(part, output);
  }

 private:
  struct Parts;

  Fp8Layer* add_fp8(const std::string& weight);
  void make_parameters(const std::vector<ParameterPlan>& plans);
  void refuse_generation() const;
  LayerAngles angles_of(const MicroBatch& batch) const;
  std::optional<LayerDropout> dropout_of(const MicroBatch& batch) const;
  std::shared_ptr<const LayerInputs> layer_inputs(const MicroBatch& batch) const;
  void begin_as_norms(Parameter& parameter) const;
  at::Tensor embed(const at::Tensor& ids_sb) const;
  at::Tensor run_layers(const LayerRun& run, const at::Tensor& x_pbh,
                        const std::shared_ptr<const LayerInputs>& inputs) const;
  at::Tensor last_norm(const at::Tensor& x_pbh) const;
  at::Tensor token_scores(const at::Tensor& x_pbh) const;
  at::Tensor own_labels(const MicroBatch& batch) const;
  at::Tensor last_losses(const at::Tensor& x_pbh, const MicroBatch& batch,
                         const std::shared_ptr<const LayerInputs>& inputs);
  at::Tensor further_losses(at::Tensor hidden_pbh, MicroBatch batch, const std::shared_ptr<const LayerInputs>& inputs);

  ModelConfig config_;
  ModelArgs args_;
  StageLayers layers_;
  ParallelContext& context_;
  c10::ScalarType dtype_;
  bool is_own_;
  std::vector<Parameter> parameters_;  // filled by the constructor; it never grows later
  std::unique_ptr<Parts> parts_;
  Observer observer_;
  double router_loss_weight_ = 1;
  ExpectedGrad expected_loss_grad_;
  RouterLosses router_losses_;
  std::shared_ptr<CountsOfStep> counts_of_step_;  // null unless a loss is of the whole step
  std::shared_ptr<RouterRecord> router_record_;
  bool measures_tokens_ = false;
  std::optional<TokenStatistics> token_statistics_;
  at::Tensor further_losses_;
};

}  // namespace concord
