// Cross entropy over logits whose vocabulary is split over ranks: no rank ever holds all columns, and in addition to
// the logits only a few numbers per token are kept. The gradient may be written over the logits.
//
// With lse = log sum exp(logits), s = label_smoothing, V the vocabulary, the loss of a token with label y is
//   lse - (1 - s) logit[y] - s mean(logits) + z_loss lse^2
// (PyTorch's smoothing; z_loss as in PaLM) and 0 where y is ignore_index. Computed in fp32, fp64 for Double.
//
// Ranks exchange four numbers per token, in one all-gather, and combine them in rank order: all get the same bits.
#pragma once

#include <cstdint>
#include <functional>

namespace at {
class Tensor;
}

namespace concord {

// Which part of the vocabulary this rank has, and how the ranks exchange their parts. Rank |index| of |count| has
// columns index * v to (index + 1) * v. all_gather(all, mine): all [count, ...] becomes the ranks' |mine|, one after
// the other; both are contiguous. core/ops/loss/vocab_share.h makes one of a process group.
struct VocabShare {
  int64_t index = 0;
  int64_t count = 1;
  std::function<void(const at::Tensor& all, const at::Tensor& mine)> all_gather = {};
};

struct CrossEntropyOptions {
  // Of the whole vocabulary, padding not counted; 0: all columns of all ranks. Columns beyond it do not exist: they are
  // in no sum, and their gradient is 0.
  int64_t vocabulary = 0;
  int64_t ignore_index = -100;
  double label_smoothing = 0;
  double z_loss = 0;
  // The gradient overwrites the logits, which must not be used any more: no other memory of their size is needed.
  bool overwrite_logits = false;
  // What the gradient of each token's loss is going to be, if that is known. With overwrite_logits and a vocabulary
  // that is not split, forward then writes the gradient over the logits in the pass that reads them; if backward is
  // given another one, it scales the rows. 0: not known.
  double expected_grad = 0;
};

// |logits| [..., v], this rank's columns. |labels| [...] int64, over the whole vocabulary, the same on all ranks.
// Returns the loss of each token [...], fp32 (fp64 for Double), the same on all ranks; backward exchanges nothing.
// Throws ConfigError for sizes that do not fit and, if libtorch computes on the host, for a label outside of the
// vocabulary.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels, const CrossEntropyOptions& options = {},
                         const VocabShare& share = {});

// The step that takes |logits| [rows, v], this rank's columns, to |losses| [rows], and over the logits to their
// gradient, where that of each loss is options.expected_grad. Not differentiable.
void cross_entropy_with_grad(at::Tensor& logits, at::Tensor& losses, const at::Tensor& labels,
                             const CrossEntropyOptions& options, const VocabShare& share = {});

}  // namespace concord
