// A model chunk as a stage of the pipeline: runs the micro-batches of a step through the chunk, reduces the token
// losses to the scalar that is differentiated, and keeps the results of each micro-batch for logging.
//
// Example, given VirtualModels& models, Schedule schedule, std::vector<MicroBatch> batches, ParallelContext& job:
//   #include "core/models/auto_model.h"
//   #include "core/pipeline/executor.h"
//   std::deque<ModelStage> stages;  // one for each chunk
//   std::vector<Stage*> pointers;
//   for (size_t i = 0; i < models.size(); ++i) pointers.push_back(&stages.emplace_back(models[i]));
//   Executor executor(schedule, pointers, job);
//   for (ModelStage& stage : stages) stage.begin(batches);
//   executor.run();
//   const double loss = stages.back().loss_sum();  // 0 unless this rank has the last stage
//
// Every rank of the pipeline has all micro-batches (the labels are used on the last stage), so shapes need no exchange,
// even if they differ from one micro-batch to the next, as packed sequences do. Threads: same as Executor.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/models/model_chunk.h"
#include "core/pipeline/stage.h"

namespace concord {

// Megatron's forward_step: runs one micro-batch through one chunk, with chunk.forward(hidden, batch, options) or its
// own computation. On the last stage PassOutput::value is the loss of each of this rank's tokens [B, S / cp], 0 for
// tokens that do not count.
using ForwardStep = std::function<PassOutput(ModelChunk& chunk, const at::Tensor& hidden, const MicroBatch& batch,
                                             const PassOptions& options)>;

// The loss of a micro-batch, for objectives other than the sum of the token losses.
struct StageLoss {
  at::Tensor differentiated;  // any shape; its sum is differentiated
  at::Tensor logged;          // the loss without graph; adds up to the whole over context-parallel ranks
};
using LossStep = std::function<StageLoss(const at::Tensor& token_losses, int microbatch)>;

class ModelStage : public Stage {
 public:
  // |chunk| has to outlive the stage. Without |forward_step| the stage calls the chunk's forward; without |loss_step|
  // the loss is the sum of the token losses.
  explicit ModelStage(ModelChunk& chunk, ForwardStep forward_step = {}, LossStep loss_step = {})
      : chunk_(chunk), forward_step_(std::move(forward_step)), loss_step_(std::move(loss_step)) {}

  // Prepares the next run of the executor; call before each. |batches| have to outlive the run. The scalar of
  // micro-batch i is the sum of its token losses times weights[i], and its router losses are multiplied by
  // router_weights[i]; both default to 1. |pass| holds the other options of every forward pass.
  void begin(std::span<const MicroBatch> batches, std::span<const double> weights = {},
             std::span<const double> router_weights = {}, const PassOptions& pass = {});

  bool is_last() const { return chunk_.is_last(); }
  // Returns the losses of this rank's tokens [B, S / cp] for each micro-batch of the run, without graph, or
  // StageLoss::logged of |loss_step|. Empty unless this is the last stage.
  const std::vector<at::Tensor>& token_losses() const { return results_.token_losses; }
  // Returns the sum of token_losses() in fp64, on the host; 0 unless this is the last stage. Waits: for the device.
  double loss_sum() const;
  // Returns PassOutput::router for each micro-batch of the run.
  const std::vector<std::shared_ptr<RouterRecord>>& router_records() const { return results_.router_records; }
  // Forwards to the chunk; see ModelChunk.
  void update_expert_bias(double rate) { chunk_.update_expert_bias(results_.router_records, rate); }
  void end_fp8_step(bool updated) { chunk_.end_fp8_step(updated); }
  bool has_fp8_history() const { return chunk_.has_fp8_history(); }
  // Returns the token statistics of each micro-batch of the run, if |pass| asked for them. Empty unless this is the
  // last stage.
  const std::vector<TokenStatistics>& token_statistics() const { return results_.token_statistics; }
  // Returns the sum of PassOutput::mtp_losses over the micro-batches of the run.
  const at::Tensor& mtp_losses() const { return results_.mtp_losses; }
  // Returns the number of this rank's tokens that count in the run, on any stage.
  int64_t counted_tokens() const;

  // All results of a run. A replay of the run (core/torch/graphed_callable.h) writes to the same tensors: set_results()
  // restores them, whatever has run in between.
  struct Results {
    std::vector<at::Tensor> token_losses;
    std::vector<std::shared_ptr<RouterRecord>> router_records;
    std::vector<TokenStatistics> token_statistics;
    at::Tensor mtp_losses;
  };
  const Results& results() const { return results_; }
  void set_results(Results results) { results_ = std::move(results); }

  ValueSpec input_spec(int microbatch) override;
  at::Tensor forward(int microbatch, const at::Tensor& input) override;
  void defer_weight_grads(DeferredWgrads* later) override;

 private:
  const MicroBatch& batch(int microbatch) const { return batches_[static_cast<size_t>(microbatch)]; }
  PassOutput run_chunk(size_t index, const at::Tensor& hidden);

  ModelChunk& chunk_;
  ForwardStep forward_step_;
  LossStep loss_step_;
  std::span<const MicroBatch> batches_;
  std::vector<double> weights_, router_weights_;
  PassOptions pass_;  // options that all micro-batches of the run have in common
  Results results_;
};

}  // namespace concord
