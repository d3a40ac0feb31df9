// Means over the tokens between two log lines, or of an evaluation, under TRL's names: entropy and mean_token_accuracy
// (stage sft: of all tokens that count; dpo: the accuracy of chosen ones only), and of pairs logits/chosen and
// logits/rejected, the mean logit of the vocabulary. Every token weighs the same, so that they do not depend on how a
// batch is split; TRL takes the mean of micro-batches' means. Everything stays on the devices until it is taken.
// Threads: the one that trains.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>

#include "core/pipeline/model_stage.h"
#include "trainer/objective/pair_objective.h"
#include "trainer/report/history.h"

namespace concord {

class TokenLog {
 public:
  TokenLog(ParallelContext& job, bool is_on) : job_(job), is_on_(is_on) {}
  // A run of |last|, this rank's last stage, which is done. |pairs|: null where there are none.
  void add(const ModelStage& last, const PairObjective* pairs);
  // With |prefix| before the names; none if there were no tokens. Every rank calls it. Waits: for all ranks.
  NamedValues take(const std::string& prefix = "");

 private:
  ParallelContext& job_;
  bool is_on_;
  bool has_pairs_ = false;
  at::Tensor sums_;
};

// The losses of layers that predict further tokens, as Megatron logs them: mtp_1_loss is the mean over the tokens that
// the first depth predicts, without mtp_loss_scaling_factor. Tokens weigh as above.
class MtpLossLog {
 public:
  MtpLossLog(ParallelContext& job, int64_t depths) : job_(job), depths_(depths) {}
  void add(const ModelStage& last);  // as TokenLog
  NamedValues take();                // the same

 private:
  ParallelContext& job_;
  int64_t depths_;
  at::Tensor sums_;
};

// Everything that is logged of an objective beside its loss.
class ObjectiveLog {
 public:
  // |with_tokens|: the chunks measure them.
  ObjectiveLog(ParallelContext& job, bool with_tokens) : pairs_(job), tokens_(job, with_tokens) {}
  void add(const ModelStage& last, const PairObjective* pairs) {
    if (pairs != nullptr) pairs_.add(*pairs);
    tokens_.add(last, pairs);
  }
  NamedValues take(const std::string& prefix = "") {
    NamedValues metrics = pairs_.take(prefix);
    for (auto& metric : tokens_.take(prefix)) metrics.push_back(std::move(metric));
    return metrics;
  }

 private:
  PairLog pairs_;
  TokenLog tokens_;
};

}  // namespace concord
