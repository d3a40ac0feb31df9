// A ModelChunk is this rank's shard of the layers of one pipeline stage: one transformer for all families of
// core/models/config.h. It is split over the tensor-parallel group (vocabulary, heads, inner size of the MLP), over
// tokens by context and sequence parallelism, and replicated over data parallelism.
//
// Tensors between layers are [S', B, H] (in names pbh, see layer_context.h), tokens first. S' is the number of this
// rank's tokens: S / cp (core/parallel/context_slices.h selects them), or S / cp / tp with sequence parallelism. Packed
// sequences are one row: B = 1, S is the sum of their lengths.
//
// The loss has to be equal on all tp ranks. Its gradients arrive in Parameter::value.grad() or its sink, summed over
// this rank's tokens; the caller reduces them over dp_cp, over tp if partial_over_tp is set, and over the embedding
// group. Threads: one at a time; backward runs on autograd's thread. Several micro-batches may be in flight: forward
// may be called again before the backward of earlier ones.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/mesh/parallel_context.h"
#include "core/models/config.h"
#include "core/models/layers/router_losses.h"
#include "core/models/micro_batch.h"
#include "core/models/model_args.h"
#include "core/models/pass_options.h"
#include "core/parallel/offload/activation_offload.h"
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
struct VisionFeatures;

class ModelChunk {
 public:
  // Allocates the parameters on the context's device, without values. |borrowed_embedding| is the embedding of another
  // chunk of this rank, for a last stage that uses it too; else null. Throws ConfigError, with the numbers, for sizes
  // that are not divisible by the layout's. |context| and |borrowed_embedding| have to outlive the chunk.
  ModelChunk(const ModelConfig& config, const ModelArgs& args, const StageLayers& layers, ParallelContext& context,
             Parameter* borrowed_embedding = nullptr);
  virtual ~ModelChunk();
  ModelChunk(const ModelChunk&) = delete;
  ModelChunk& operator=(const ModelChunk&) = delete;

  // Runs one micro-batch through the chunk. |hidden| comes from the previous stage; undefined on the first. |batch| is
  // the whole micro-batch on all stages; only the last one reads its labels. MTP layers add to the gradient of the
  // token losses, not to their values. Throws ConfigError, with the sizes, for a batch that does not fit the layout.
  virtual PassOutput forward(const at::Tensor& hidden, const MicroBatch& batch, const PassOptions& options = {});

  // Returns a cache of keys and values for generation with this chunk's layers, |capacity| tokens in each of |rows|
  // rows. Throws ConfigError for a capacity beyond the model's positions.
  std::unique_ptr<KvCache> make_cache(int64_t rows, int64_t capacity) const;
  // Runs the new tokens of each row after those in |cache|, without autograd, and appends them to |cache|. |hidden| as
  // in forward, but [S, B, H]: all tp and cp ranks have all tokens. Returns the hidden states for the next stage, or on
  // the last stage the logits after the last new token of each row, [B, V of this tp rank].
  at::Tensor decode(const at::Tensor& hidden, const NewTokens& tokens, KvCache& cache);

  const StageLayers& layers() const { return layers_; }
  bool is_first() const { return layers_.embedding; }
  bool is_last() const { return layers_.loss; }

  // Returns the parameters in the order of use. Their addresses do not change. A borrowed embedding is not included.
  std::span<Parameter> parameters() { return parameters_; }
  Parameter* embedding();  // the table of the first stage; null elsewhere
  // Initialises the parameters: normal(initializer_range), norms 1, biases 0; adapters like peft. Values are bitwise
  // identical under any layout.
  enum class Which { all, adapter, score };
  void initialise(Which which = Which::all);

  // Updates the expert biases after a step whose passes returned |records|: adds |rate| to the bias of experts that had
  // fewer tokens than the mean, and subtracts it if they had more (DeepSeek-V3, Megatron's
  // moe_router_bias_update_rate). Does nothing without such biases. Every rank of the stage calls it. Waits: for them,
  // as Work::wait does.
  void update_expert_bias(std::span<const std::shared_ptr<RouterRecord>> records, double rate);

  // Drops the FP8 copies of the weights; call when weights may have changed. Does nothing without FP8.
  void forget_fp8_weights();
  // Ends a step of the FP8 layers (fp8_layers.h), on all ranks of the stage. Does nothing without FP8.
  void end_fp8_step(bool updated);
  bool has_fp8_history() const;  // see Fp8Layers
  Fp8Layers* fp8_layers();       // null: none

  // Bytes that the inputs of recomputed layers have moved between device and host so far.
  ActivationOffload::Traffic offload_traffic() const;

  // Returns the shape of forward's |hidden|, for receive buffers.
  std::vector<int64_t> hidden_shape(const MicroBatch& batch) const;
  c10::ScalarType hidden_dtype() const { return dtype_; }
  // Returns the number of this rank's tokens (its slice under context parallelism) whose label is not ignored.
  int64_t counted_tokens(const MicroBatch& batch) const;
  // Returns this rank's tokens [B, S / cp] of |x| [B, S], which has one value for each token of the whole sequence.
  at::Tensor own_tokens(const at::Tensor& x, const MicroBatch& batch) const;

  // Whether the expert counts of all stages are passed from one to the next, and back (pooled_aux_loss).
  bool passes_expert_counts() const;
  int64_t experts() const { return config_.experts.num_experts; }
  // Whether the network is custom, a subclass.
  bool is_own() const { return is_own_; }

 protected:
  // A custom network, which overrides forward and has the parameters of |plans|; see examples/pretrain. It is trained,
  // evaluated and saved like other models; make_cache and decode throw ConfigError. Values between stages have
  // hidden_shape. Its forward has to report "logits" with PassOptions::observe for compute_accuracy, compute_metrics
  // and do_predict.
  ModelChunk(const ModelConfig& config, const ModelArgs& args, const StageLayers& layers, ParallelContext& context,
             const std::vector<ParameterPlan>& plans);

  const ModelConfig& config() const { return config_; }
  ParallelContext& context() const { return context_; }
  const Parameter& parameter(const std::string& name) const;  // throws ConfigError if it does not exist

 private:
  struct Parts;

  Fp8Layer* add_fp8(const std::string& weight);
  void make_parameters(const std::vector<ParameterPlan>& plans);
  void offload_inputs();
  void refuse_generation() const;
  LayerAngles angles_of(const MicroBatch& batch) const;
  std::optional<LayerDropout> dropout_of(const MicroBatch& batch) const;
  std::shared_ptr<RouterRecord> router_record(const MicroBatch& batch, const PassOptions& options) const;
  std::shared_ptr<LayerInputs> layer_inputs(const MicroBatch& batch, const PassOptions& options) const;
  void check_hidden(const at::Tensor& hidden, const MicroBatch& batch) const;
  void begin_as_norms(Parameter& parameter) const;
  at::Tensor embed(const at::Tensor& ids_sb, const LayerDropout* noise = nullptr) const;
  VisionFeatures vision_features(const MicroBatch& batch, LayerInputs* inputs) const;
  at::Tensor run_layers(const LayerRun& run, const std::vector<at::Tensor>& given,
                        const std::shared_ptr<const LayerInputs>& inputs) const;
  at::Tensor last_norm(const at::Tensor& x_pbh) const;
  at::Tensor token_scores(const at::Tensor& x_pbh) const;
  at::Tensor own_labels(const MicroBatch& batch) const;
  PassOutput token_losses(const at::Tensor& x_pbh, const MicroBatch& batch, const PassOptions& options,
                          const std::shared_ptr<const LayerInputs>& inputs) const;
  void add_mtp_losses(at::Tensor hidden_pbh, MicroBatch batch, const std::shared_ptr<const LayerInputs>& inputs,
                      PassOutput* output) const;

  ModelConfig config_;
  ModelArgs args_;
  StageLayers layers_;
  ParallelContext& context_;
  c10::ScalarType dtype_;
  bool is_own_;
  std::vector<Parameter> parameters_;  // filled by the constructor; does not grow later
  std::unique_ptr<Parts> parts_;
  RouterLosses router_losses_;
};

}  // namespace concord
