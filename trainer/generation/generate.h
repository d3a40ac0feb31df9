// Generates tokens: a prompt, then one token after another until the model ends or the limit is reached.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/models/auto_model.h"
#include "trainer/data/token_batch.h"
#include "trainer/generation/generate_arguments.h"

namespace concord {

struct Generated {
  std::vector<int64_t> ids;  // without the token that ended it
  bool is_ended = false;     // by one of the ends; else max_new_tokens or the model's positions are used up
};

// Called with each token, in the order in which they come; prompts count from 0.
using OnToken = std::function<void(size_t prompt, int64_t id)>;

// One result for each of |prompts|, on every rank. All ranks of the job call it with the same arguments; one of them
// chooses each token and the others follow, so they never part. |ends| are the tokens that end a text. |on_token| is
// called on this rank. |media| are those of each prompt, or empty; they need one rank, and a model whose vision tower
// is in use. Gradients and optimizer are not touched.
// Throws ConfigError, with the prompt's number, for one that is empty, has ids outside of the vocabulary, or leaves no
// room in the model's positions. Waits: for all ranks, and once per step for the device.
std::vector<Generated> generate(VirtualModels& models, const std::vector<std::vector<int64_t>>& prompts,
                                const std::vector<int64_t>& ends, const GenerateOptions& options, ParallelContext& job,
                                const OnToken& on_token = {}, const std::vector<BatchMedia>& media = {});

// |lists| of rank 0, on every rank; what the others give is not read. Waits: for all ranks.
std::vector<std::vector<int64_t>> from_first_rank(const std::vector<std::vector<int64_t>>& lists, ParallelContext& job);

}  // namespace concord
