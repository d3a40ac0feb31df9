// The objective of stages dpo and rm: reduces the tokens of a micro-batch of pairs to one number per sequence, and each
// pair of sequences to a loss (trainer/objective/preference_loss.h) and metrics.
//
// A pair lives in one micro-batch, as rows or packed sequences 2i (chosen) and 2i + 1 (rejected), on the ranks of one
// replica. The last stage of the pipeline has the loss. Sums over the tokens of a sequence are taken in fp64: a
// preference is the small difference of two large sums, the model's and the reference's. Under context parallelism a
// rank holds some tokens of each sequence: the sums are all-reduced over the group, so every rank has the loss, and
// each the gradients of its own tokens. Threads: training thread only.
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

int64_t counted_pairs(const MicroBatch& batch);  // excluding padding

class PairObjective {
 public:
  PairObjective(const PreferenceArguments& arguments, ParallelContext& job) : arguments_(arguments), job_(job) {}

  // Call before a run, with its micro-batches on the host.
  void begin(std::span<const MicroBatch> batches);
  // Sets the reference's log-probabilities of the sequences, [2 pairs] per micro-batch, on the last stage; for losses
  // that use a reference.
  void set_reference(std::vector<at::Tensor> logps) { reference_ = std::move(logps); }
  // Returns log-probabilities of sequences, [2 pairs] per micro-batch, from token losses as in
  // ModelStage::token_losses.
  std::vector<at::Tensor> sequence_logps(std::span<const at::Tensor> token_losses) const;

  // Returns the losses of the pairs. |tokens| [B, S / cp] holds the loss of each of this rank's tokens, or its score by
  // a reward model. Last stage only.
  StageLoss losses(const at::Tensor& tokens, int microbatch);

  // Returns the number of pairs of the run and sums over them, in the order of names(), fp32 on the device; zeros
  // except on the last stage.
  at::Tensor sums() const;
  // Returns 1 for each of this rank's tokens [B, S / cp] that belongs to a chosen sequence, -1 for those of rejected
  // ones, 0 for padding. Last stage only.
  at::Tensor pair_labels(size_t microbatch) const { return layouts_[microbatch].pair_labels; }
  // The negated smallest and the largest reward of the run of a reward model, fp32 [2]; undefined except on the last
  // stage.
  bool has_reward_min_max() const { return arguments_.stage == TrainingStage::rm; }
  at::Tensor reward_min_max() const { return reward_min_max_; }
  // TRL's.
  std::vector<std::string> names() const;

 private:
  struct Layout {
    int64_t pairs = 0;
    at::Tensor weights;           // weights of this rank's tokens in the sums of their sequences; undefined: all 1
    at::Tensor lengths;           // predicted tokens per sequence, fp32 [2 pairs]
    at::Tensor pair_labels;       // of tokens, see pair_labels()
    at::Tensor margins;           // fp32 [pairs], for a reward model
    std::vector<int64_t> pieces;  // tokens of this rank in each sequence, if packed
  };
  Layout layout_of(const MicroBatch& batch) const;
  void add_reward_min_max(const at::Tensor& rewards);
  // Returns the sums over sequences, fp64 [2 pairs], all-reduced over the context-parallel group.
  at::Tensor sequence_sums(const at::Tensor& tokens, const Layout& layout) const;

  const PreferenceArguments& arguments_;
  ParallelContext& job_;
  std::vector<Layout> layouts_;
  std::vector<at::Tensor> reference_;  // log-probabilities of sequences by the reference
  at::Tensor sums_;
  at::Tensor reward_min_max_;
};

// Means over the pairs between two log lines, or of an evaluation. All sums stay on the device until take().
class PairLog {
 public:
  explicit PairLog(ParallelContext& job) : job_(job) {}
  void add(const PairObjective& objective);
  // Returns the means, with |prefix| before the names; empty if there were no pairs. Every rank calls it. Waits: for
  // all ranks.
  NamedValues take(const std::string& prefix = "");

 private:
  void collect_reward_min_max();

  ParallelContext& job_;
  std::vector<std::string> names_;
  at::Tensor sums_;
  std::vector<at::Tensor> reward_min_max_;  // on the device, [-smallest, largest] per run
  double smallest_ = 0, largest_ = 0;       // sums over earlier runs
  int64_t runs_ = 0;
};

}  // namespace concord
