// A micro-batch: sequences of tokens, the same on all ranks of a tensor-, context- or pipeline-parallel group. The
// model selects its part of the tokens itself (core/parallel/context_slices.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "core/models/vision/media_positions.h"

namespace concord {

inline constexpr int64_t kIgnoredLabel = -100;

// Address of a micro-batch's random numbers, whichever rank computes it: the step, and the index of its first row in
// the global batch. Packed sequences are one row.
struct BatchDraws {
  int64_t step = 0;
  int64_t first_row = 0;
};

// On the host or on the device. A value; copies share the tensors.
struct MicroBatch {
  at::Tensor input_ids;    // int64 [B, S]; packed sequences: [1, T]
  at::Tensor labels = {};  // int64 like input_ids: the next token; kIgnoredLabel: none
  // int64 like input_ids, or [3, B, S] for positions on three axes; undefined: counted from the sequence's first token,
  // and placed on grids for images and videos.
  at::Tensor position_ids = {};
  std::vector<int64_t> cu_seqlens = {};  // boundaries of packed sequences [0, ..., T]; empty: not packed
  // Ids of the pairs in a batch of pairs, two rows or packed sequences each; negative ones are padding.
  std::vector<int64_t> pairs = {};
  std::vector<double> margins = {};      // reward models: margin by which the chosen one should be better
  std::optional<BatchDraws> draws = {};  // none: there is neither dropout nor noise
  // For a model whose vision tower is in use: the patches of all images, followed by those of all videos, [P, pixels of
  // a patch] floats, and their grids. Undefined: the batch has none.
  at::Tensor pixel_values = {};
  MediaList media = {};
};

}  // namespace concord
