// What the model makes of some prompts in the middle of training: --sample_prompts.
#pragma once

#include <memory>

#include "core/models/auto_model.h"
#include "trainer/plan.h"
#include "trainer/report/report.h"

namespace concord {

// Every rank has one and makes the same calls. Rank 0 has the text; with a tokenizer that is a process, it lives as
// long. Threads: the one that trains.
class PromptSamples {
 public:
  // Throws ConfigError for prompts that cannot be tokenized. Waits: for all ranks.
  PromptSamples(const TrainingPlan& plan, ParallelContext& job);

  // The prompts and their greedy continuations, on rank 0; empty on the others, and where there are no prompts. Waits:
  // for all ranks.
  NamedTexts generate(VirtualModels& models);

 private:
  ParallelContext& job_;
  bool writes_;  // has what is generated as text
  std::vector<Prompt> prompts_;
  std::unique_ptr<Tokenizer> tokenizer_;  // on such ranks, and only if something is text
  std::vector<std::vector<int64_t>> ids_;
  std::vector<int64_t> ends_;
  int64_t max_new_tokens_;
};

}  // namespace concord
