// The objective of stages dpo and rm: the tokens of a micro-batch of pairs become a number for each sequence, two
// sequences a loss (trainer/objective/preference_loss.h), and what is logged.
//
// A pair lives in one micro-batch, as rows or packed sequences 2i (chosen) and 2i + 1 (rejected), on the ranks of one
// replica. The last stage of the pipeline has the loss. Sums over the tokens of a sequence are taken in 64 bits: a
// preference is the small difference of two large ones, the model's and the reference's. Under context parallelism a
// rank has some tokens of each sequence: their sums are added up over the group, and the gradient of the sum is that of
// each part, so that all ranks have the loss, and each the gradients of its own tokens. Threads: the one that trains.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/mesh/parallel_context.h"
#include "core/models/micro_batch.h"
#include "core/pipeline/model_stage.h"
#include "trainer/arguments/training_arguments.h"
#include "trainer/report/history.h"

namespace concord {

int64_t counted_pairs(const MicroBatch& batch);  // without padding

class PairObjective {
 public:
  PairObjective(const PreferenceArguments& arguments, ParallelContext& job) : arguments_(arguments), job_(job) {}

  // The micro-batches of the next run, on the host.
  void begin(std::span<const MicroBatch> batches);
  // The reference's log-probabilities of their sequences, [2 pairs] each, on the last stage; for losses that use it.
  void set_reference(std::vector<at::Tensor> logps) { reference_ = std::move(logps); }
  // These by the losses of its tokens, as ModelStage::token_losses.
  std::vector<at::Tensor> sequence_logps(std::span<const at::Tensor> token_losses) const;

  // On the last stage. |tokens| [B, S / cp]: of each of this rank's tokens its loss, or its score by a reward model.
  StageLoss losses(const at::Tensor& tokens, int microbatch);

  // Of the run, on the last stage, else zeros: the number of pairs and sums over them, in the order of names(), in 32
  // bits on the device.
  at::Tensor sums() const;
  // Of the run, on the last stage: of each of this rank's tokens [B, S / cp] 1 if it is of a chosen sequence, -1 if of
  // a rejected one, 0 if of padding.
  at::Tensor sides(size_t microbatch) const { return layouts_[microbatch].sides; }
  // Of a reward model: minus the smallest and the largest reward of the run, fp32 [2]; undefined but on the last stage.
  bool has_extremes() const { return arguments_.stage == "rm"; }
  at::Tensor extremes() const { return extremes_; }
  // TRL's.
  std::vector<std::string> names() const;

 private:
  struct Layout {
    int64_t pairs = 0;
    at::Tensor weights;           // of this rank's tokens in the sum of their sequence; undefined: all 1
    at::Tensor lengths;           // fp32 [2 pairs], tokens that are predicted
    at::Tensor sides;             // of tokens, see sides()
    at::Tensor margins;           // fp32 [pairs], of a reward model
    std::vector<int64_t> pieces;  // packed: tokens of this rank in each sequence
  };
  Layout layout_of(const MicroBatch& batch) const;
  void add_extremes(const at::Tensor& rewards);
  // fp64 [2 pairs], over the context-parallel group.
  at::Tensor sequence_sums(const at::Tensor& tokens, const Layout& layout) const;

  const PreferenceArguments& arguments_;
  ParallelContext& job_;
  std::vector<Layout> layouts_;
  std::vector<at::Tensor> reference_;  // log-probabilities of sequences
  at::Tensor sums_;
  at::Tensor extremes_;
};

// Means over pairs between two log lines, or of an evaluation. Everything stays on the devices until it is taken.
class PairLog {
 public:
  explicit PairLog(ParallelContext& job) : job_(job) {}
  void add(const PairObjective& objective);
  // With |prefix| before the names; none if there were no pairs. Every rank calls it. Waits: for all ranks.
  NamedValues take(const std::string& prefix = "");

 private:
  void collect_extremes();

  ParallelContext& job_;
  std::vector<std::string> names_;
  at::Tensor sums_;
  std::vector<at::Tensor> extremes_;   // of runs that are still on the device: [-smallest, largest]
  double smallest_ = 0, largest_ = 0;  // sums over runs before them
  int64_t runs_ = 0;
};

}  // namespace concord
