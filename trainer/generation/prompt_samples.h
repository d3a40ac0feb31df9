// Continuations of prompts that the model generates during training: --sample_prompts.
#pragma once

#include <memory>

#include "core/models/auto_model.h"
#include "trainer/plan.h"
#include "trainer/report/report.h"

namespace concord {

// Every rank creates one and makes the same calls. Rank 0 handles the text. Owns: the tokenizer, which may be a
// process. Threads: training thread only.
class PromptSamples {
 public:
  // Throws ConfigError for prompts that cannot be tokenized. Waits: for all ranks.
  PromptSamples(const TrainingPlan& plan, ParallelContext& job);

  // Returns the prompts and their greedy continuations on rank 0; empty on the others, and without prompts. Waits: for
  // all ranks.
  NamedTexts generate(VirtualModels& models);

 private:
  ParallelContext& job_;
  bool writes_;  // this rank decodes the generated tokens
  std::vector<Prompt> prompts_;
  std::unique_ptr<Tokenizer> tokenizer_;  // only if this rank writes and a prompt is text
  std::vector<std::vector<int64_t>> ids_;
  std::vector<int64_t> ends_;
  int64_t max_new_tokens_;
};

}  // namespace concord
