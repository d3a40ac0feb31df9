// The tokens of a micro-batch in chunks, for losses whose logits never exist as a whole: with 151,936 columns those of
// 16,384 tokens take 5 GB in bf16. output_layer.h says when chunks are used.
//
// Example, given const at::Tensor& normed_pbh, const at::Tensor& labels_sb,
//     at::Tensor losses_of(const at::Tensor& normed_pbh, const at::Tensor& labels_sb):
//   #include <ATen/core/Tensor.h>
//   const LossChunks chunks(normed_pbh, labels_sb, 1024, 1);
//   std::vector<at::Tensor> losses;
//   for (const LossChunk& chunk : chunks.list()) losses.push_back(losses_of(chunk.normed_pbh, chunk.labels_sb));
//   const at::Tensor losses_bs = chunks.joined(losses);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/models/token_statistics.h"

namespace concord {

struct LossChunk {
  at::Tensor normed_pbh;  // this rank's positions
  at::Tensor labels_sb;   // labels of all ranks' positions, rank by rank
};

class LossChunks {
 public:
  // |normed_pbh| are this rank's positions of |ranks| that share the sequence (sequence parallelism), |labels_sb| the
  // labels of all. A chunk has at most |tokens| tokens over all ranks, but at least one position of each rank.
  LossChunks(const at::Tensor& normed_pbh, const at::Tensor& labels_sb, int64_t tokens, int64_t ranks);

  const std::vector<LossChunk>& list() const { return chunks_; }
  // Concatenates results of the chunks, [b, tokens of the chunk] each, in the order of the sequence: [b, s].
  at::Tensor joined(const std::vector<at::Tensor>& parts) const;
  TokenStatistics joined(const std::vector<TokenStatistics>& parts) const;

 private:
  std::vector<LossChunk> chunks_;
  int64_t rows_;
  int64_t ranks_;
};

}  // namespace concord
