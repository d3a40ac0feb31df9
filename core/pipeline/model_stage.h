// A chunk of a model as a stage of the pipeline: takes the micro-batches of a run, and makes the losses of tokens into
// the scalar that is differentiated, together with what is to be logged.
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
//   const double loss = stages.back().loss_sum();  // 0 but on the last stage
//
// Every rank of the pipeline has all micro-batches (the labels are used on the last stage), so shapes need no exchange,
// even if they differ from one micro-batch to the next, as packed sequences do. Threads: those of the executor.
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

// What Megatron's users write as forward_step: one micro-batch through one chunk. Returns what goes to the next stage,
// or on the last one the loss of each of this rank's tokens [B, S / cp], 0 where a token does not count.
using ForwardStep = std::function<at::Tensor(ModelChunk& chunk, const at::Tensor& hidden, const MicroBatch& batch)>;

// What is made of a micro-batch's token losses where their sum is not the loss.
struct StageLoss {
  at::Tensor differentiated;  // any shape; the sum is
  at::Tensor logged;          // the same without graph; over context-parallel ranks it adds up to the whole
};
using LossStep = std::function<StageLoss(const at::Tensor& token_losses, int microbatch)>;

class ModelStage : public Stage {
 public:
  // |chunk| outlives it. Without |forward_step| it is the chunk's forward, and without |loss_step| the loss is the sum.
  explicit ModelStage(ModelChunk& chunk, ForwardStep forward_step = {}, LossStep loss_step = {})
      : chunk_(chunk), forward_step_(std::move(forward_step)), loss_step_(std::move(loss_step)) {}

  // Before each run of the executor. |batches| stay until it is done. The scalar of micro-batch i is the sum of its
  // token losses times weights[i], and the losses of its routers are multiplied by router_weights[i]; 1 if none are
  // given.
  void begin(std::span<const MicroBatch> batches, std::span<const double> weights = {},
             std::span<const double> router_weights = {});

  bool is_last() const { return chunk_.is_last(); }
  // Of the run, on the last stage: for each micro-batch the losses of this rank's tokens [B, S / cp], without graph, or
  // what |loss_step| made of them.
  const std::vector<at::Tensor>& token_losses() const { return results_.token_losses; }
  // Their sum, in 64 bits on the host. Waits: for the device. 0 where this is not the last stage.
  double loss_sum() const;
  // Of the run: what the chunk's routers did with each micro-batch; null in models without experts and in runs without
  // backward.
  const std::vector<std::shared_ptr<RouterRecord>>& router_records() const { return results_.router_records; }
  // These three as ModelChunk says.
  void update_expert_bias(double rate) { chunk_.update_expert_bias(results_.router_records, rate); }
  void end_fp8_step(bool updated) { chunk_.end_fp8_step(updated); }
  bool has_fp8_history() const { return chunk_.has_fp8_history(); }
  // Of the run, on the last stage: what was measured of each micro-batch's tokens, where the chunk is told to; none
  // elsewhere.
  const std::vector<TokenStatistics>& token_statistics() const { return results_.token_statistics; }
  // Of the run, on the last stage: ModelChunk::take_mtp_losses of all micro-batches, summed; undefined if the model
  // predicts no further tokens, and in runs without backward.
  const at::Tensor& further_losses() const { return results_.further_losses; }
  // Tokens of this rank that count in the run; on any stage.
  int64_t counted_tokens() const;

  // All of the above, for a replay of the run (core/torch/graphed_callable.h), which writes to the same tensors:
  // whatever has run in between, |results| say again where they are.
  struct Results {
    std::vector<at::Tensor> token_losses;
    std::vector<std::shared_ptr<RouterRecord>> router_records;
    std::vector<TokenStatistics> token_statistics;
    at::Tensor further_losses;
  };
  const Results& results() const { return results_; }
  void set_results(Results results) { results_ = std::move(results); }

  ValueSpec input_spec(int microbatch) override;
  at::Tensor forward(int microbatch, const at::Tensor& input) override;
  void defer_weight_grads(DeferredWgrads* later) override;

 private:
  const MicroBatch& batch(int microbatch) const { return batches_[static_cast<size_t>(microbatch)]; }
  // The chunk's part of a forward.
  at::Tensor run_chunk(size_t index, const at::Tensor& hidden);

  ModelChunk& chunk_;
  ForwardStep forward_step_;
  LossStep loss_step_;
  std::span<const MicroBatch> batches_;
  std::vector<double> weights_, router_weights_;
  Results results_;
};

}  // namespace concord
