// The cross entropy of an output layer whose logits never exist whole: y = x weight^T is made some rows at a time, and
// of each piece the losses, the gradient and both halves of the layer's derivative follow in forward, before the next
// one. Nothing is computed twice; what backward is left with is the gradient of x.
//
// That is possible only where it is certain in forward what the gradient of each row's loss is going to be
// (CrossEntropyOptions::expected_grad), and that backward follows: the weight's gradient is in the sink by then.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "core/ops/grad_sink.h"
#include "core/ops/loss/cross_entropy.h"

namespace concord {

// Is shown the logits of each piece [rows, v] with its labels, before they are overwritten.
using LogitsReader = std::function<void(const at::Tensor& logits, const at::Tensor& labels)>;

struct PiecewiseLoss {
  CrossEntropyOptions cross_entropy;  // of which expected_grad is not 0
  int64_t rows = 0;                   // at a time
  LogitsReader reader = {};           // may be empty
  VocabShare share = {};              // what |weight| is of the vocabulary
};

// |x| [n, in], |weight| [v, in], this rank's rows of the vocabulary, |labels| [n]. Returns the losses [n] as
// cross_entropy does; with a share of the vocabulary the gradient of x is this rank's part of the sum. The weight's
// gradient is added to |sink|, which a weight that requires one needs, at once, even where the sink wants it later;
// sink->added is called once, in backward. Where no derivative is needed nothing is added. If backward is given another
// gradient than the expected one, that of a trained weight is wrong already: the gradient of x then is NaN in these
// rows. Throws ConfigError for sizes that do not fit.
at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& labels,
                                const GradSink* sink, const PiecewiseLoss& how);

}  // namespace concord
