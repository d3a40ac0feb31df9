// Dropout inside a model, identical under any layout: the mask is a function of the seed, the step, the row of the
// global batch, the site in the model and the position in the whole tensor. So tensor, sequence, context, pipeline and
// data parallelism and recomputation all drop what one process drops, and a resumed run needs no state.
//
// Sites are Megatron's: hidden_dropout after the embedding and on the outputs of attention and MLP, attention_dropout
// on the probabilities after the softmax (attention_dropout.h). It applies only under autograd and to micro-batches of
// a training step (MicroBatch::draws). Element h of the token at position t of a row is dropped by the uniform number
// at position t * hidden_size + h of the stream
//   key = seed * 2^32 + step,   subsequence = site * 2^32 + row.
// For packed sequences t counts over the whole micro-batch, which is one row. NEFTune's noise on the embedding's output
// has another site: element h of the token at t gets (2 u - 1) * alpha / sqrt(tokens of a row * hidden_size), where u
// is the uniform number at its position.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/parallel/context_slices.h"

namespace concord {

inline constexpr uint64_t kEmbeddingSite = 0;
inline constexpr uint64_t kNoiseSite = 0xffffffff;  // beyond those of all layers
enum class DropoutPart : uint64_t { attention_probabilities = 1, attention = 2, mlp = 3 };
// Returns the site of |part| in layer |number|, counted from 0.
constexpr uint64_t dropout_site(int64_t number, DropoutPart part) {
  return static_cast<uint64_t>(number) * 3 + static_cast<uint64_t>(part);
}

// Dropout and noise of one micro-batch on one rank.
struct LayerDropout {
  double hidden = 0;  // probabilities
  double attention = 0;
  double noise = 0;  // largest absolute value of NEFTune's noise
  uint64_t key = 0;
  int64_t first_row = 0;         // first row of the micro-batch in the global batch
  std::vector<TokenRun> tokens;  // this rank's tokens between layers, in order
};

// |x| [p, b, h] (core/models/layers/layer_context.h), some of it dropped and the rest divided by 1 - p.
at::Tensor hidden_dropout(const at::Tensor& x_pbh, const LayerDropout& dropout, uint64_t site);

// |x| [p, b, h], the embedding's output, with NEFTune's noise.
at::Tensor with_noise(const at::Tensor& x_pbh, const LayerDropout& dropout);

// The part of |runs| that begins after |skipped| tokens, |count| of them.
std::vector<TokenRun> part_of_runs(const std::vector<TokenRun>& runs, int64_t skipped, int64_t count);

}  // namespace concord
