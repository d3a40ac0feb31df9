// Cross entropy over logits whose vocabulary is sharded: no rank ever holds all columns, and in addition to the logits
// only a few numbers per token are kept. The gradient may overwrite the logits.
//
// With lse = log sum exp(logits), s = label_smoothing, V the vocabulary, the loss of a token with label y is
//   lse - (1 - s) logit[y] - s mean(logits) + z_loss lse^2
// (PyTorch's smoothing; z_loss as in PaLM) and 0 if y is ignore_index. Computed in fp32, fp64 for Double.
//
// Ranks exchange four numbers per token in one all-gather and combine them in rank order: results are bitwise identical
// on all ranks.
#pragma once

#include <cstdint>
#include <functional>

namespace at {
class Tensor;
}

namespace concord {

// The part of the vocabulary on this rank, and the exchange between ranks. Rank |index| of |count| holds columns index
// * v to (index + 1) * v. all_gather(all, mine) sets all [count, ...] to the concatenated |mine| of the ranks; both are
// contiguous. core/ops/loss/vocab_share.h creates one from a process group.
struct VocabShare {
  int64_t index = 0;
  int64_t count = 1;
  std::function<void(const at::Tensor& all, const at::Tensor& mine)> all_gather = {};
};

struct CrossEntropyOptions {
  // Size of the whole vocabulary without padding; 0: all columns of all ranks. Columns beyond it are ignored: they are
  // in no sum, and their gradient is 0.
  int64_t vocabulary = 0;
  int64_t ignore_index = -100;
  double label_smoothing = 0;
  double z_loss = 0;
  // The gradient overwrites the logits, which must not be used afterwards: no other memory of their size is needed.
  bool overwrite_logits = false;
  // The gradient that each token's loss will receive, if known. With overwrite_logits and a vocabulary that is not
  // sharded, forward then writes the gradient over the logits in the pass that reads them; if backward receives a
  // different one, it rescales the rows. 0: unknown.
  double expected_grad = 0;
};

// |logits| [..., v], this rank's columns. |labels| [...] int64, over the whole vocabulary, identical on all ranks.
// Returns the loss of each token [...], fp32 (fp64 for Double), identical on all ranks; backward does not communicate.
// Throws ConfigError for sizes that do not match and, if libtorch computes on the host, for a label outside the
// vocabulary.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels, const CrossEntropyOptions& options = {},
                         const VocabShare& share = {});

// Computes |losses| [rows] from |logits| [rows, v], this rank's columns, and overwrites the logits with their gradient
// if the gradient of each loss is options.expected_grad. Not differentiable.
void cross_entropy_with_grad(at::Tensor& logits, at::Tensor& losses, const at::Tensor& labels,
                             const CrossEntropyOptions& options, const VocabShare& share = {});

}  // namespace concord
