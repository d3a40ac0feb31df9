// A micro-batch as one rank of a context-parallel group sees it: its tokens, their positions. Errors: ConfigError with
// the sizes. Threads: any.
#pragma once

#include <cstdint>
#include <vector>

#include "core/mesh/process_group.h"
#include "core/models/micro_batch.h"

namespace concord {

// Throws ConfigError for a batch that violates MicroBatch. |with_labels|: labels are required.
void check_batch(const MicroBatch& batch, bool with_labels);

// Shifts labels in Hugging Face's form, at their own token, to the token that predicts them: result[t] = labels[t + 1],
// kIgnoredLabel at the end of each sequence. |labels| [B, S]; |cu_seqlens| as in MicroBatch.
at::Tensor labels_that_follow(const at::Tensor& labels, const std::vector<int64_t>& cu_seqlens = {});

// Returns the lengths of the sequences along dim 1: those of packed sequences, or one length for all rows.
std::vector<int64_t> sequence_lengths(const MicroBatch& batch);

// |x| [..., S] of the whole -> [..., S / cp], the tokens of this rank of |cp|. Host or device, as |x| is.
at::Tensor own_tokens(const at::Tensor& x, const MicroBatch& batch, const ProcessGroup& cp);

struct TokenPositions {
  at::Tensor own;  // int64 [S / cp, B], or [S / cp, 1] where all rows have the same
  int64_t length;  // the largest position of the whole + 1
};
// Packed sequences count from 0 each. |device| is where the result goes. Given positions on three axes are
// [3, S / cp, B].
TokenPositions token_positions(const MicroBatch& batch, const ProcessGroup& cp, c10::Device device);
// Returns the positions of a batch with images or videos [3, S, B], of all cp ranks, from each sequence's first token.
TokenPositions media_positions(const MicroBatch& batch, const MediaTokens& tokens, c10::Device device);

}  // namespace concord
