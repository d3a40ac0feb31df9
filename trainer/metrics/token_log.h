// Means over the tokens between two log lines, or of an evaluation, with TRL's names: entropy, mean_token_accuracy
// (stage sft: all tokens that the loss covers; dpo: chosen ones only), and for pairs logits/chosen and logits/rejected,
// the mean logit of the vocabulary. Every token has the same weight, so the metrics do not depend on how a batch is
// split; TRL takes the mean of micro-batches' means. Sums stay on the device until take(). Threads: training thread
// only.
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
  // Adds a completed run of |last|, this rank's last stage. |pairs|: null except for pairs.
  void add(const ModelStage& last, const PairObjective* pairs);
  // Returns the means, with |prefix| before the names; empty if there were no tokens. Every rank calls it. Waits: for
  // all ranks.
  NamedValues take(const std::string& prefix = "");

 private:
  ParallelContext& job_;
  bool is_on_;
  bool has_pairs_ = false;
  at::Tensor sums_;
};

// The losses of MTP layers, as Megatron logs them: mtp_1_loss is the mean over the tokens that the first depth
// predicts, without mtp_loss_scaling_factor. Every token has the same weight.
class MtpLossLog {
 public:
  MtpLossLog(ParallelContext& job, int64_t depths) : job_(job), depths_(depths) {}
  void add(const ModelStage& last);  // like TokenLog::add
  NamedValues take();                // like TokenLog::take

 private:
  ParallelContext& job_;
  int64_t depths_;
  at::Tensor sums_;
};

// All metrics of an objective except its loss.
class ObjectiveLog {
 public:
  // |with_tokens|: the chunks measure token statistics.
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
